//! A pool that is open for writing: its volumes, its commands, and the task that syncs.
