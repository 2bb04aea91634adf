//! Standard error, whoever is at the other end: what is said there is of use, and never worth a daemon.
//!
//! ```text
//!   a command   say! ─▶ write(2), an error of which is nobody's
//!   the daemon  say!, its log ─▶ lines that wait, bounded ─▶ one thread ─▶ write(2)
//!                                  └─ full: dropped, counted
//! ```
//!
//! `eprintln!` panics when it cannot write, which ends the task that had something to say: a listener, say, because
//! the log's reader is gone or its disk is full. And a reader that hangs would make every task wait that logs, until
//! no thread of the runtime is left that could serve, or hear a signal. Hence the daemon writes in a thread of its
//! own; what comes faster than it is taken is dropped, and how many lines were is said as soon as somebody takes one.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    collections::VecDeque,
    fmt,
    io::{self, Write},
    panic,
    sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use server::pool::text::clean_lines;

/// Of lines that wait, at most. A reader that rests for a while finds the beginning of what happened.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// How long the last lines are waited for: a reader that is there has taken them long before.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);

/// Says a line on standard error, in the form of `format!`. Never fails, and with [`write_in_background`] never waits.
macro_rules! say {
    () => { $crate::stderr::line(format_args!("")) };
    ($($what:tt)*) => { $crate::stderr::line(format_args!($($what)*)) };
}
/// The daemon's lines; without it, they are written where they arise.
static LINES: OnceLock<Lines> = OnceLock::new();

/// From here on nobody waits for the reader of standard error.
///
/// # Errors
/// There is no thread to be had.
pub(crate) fn write_in_background() -> io::Result<()> {
    let lines = LINES.get_or_init(Lines::default);
    // Not a task: it waits in a system call for as long as the reader likes.
    thread::Builder::new().name("log".to_owned()).spawn(|| lines.run(&mut io::stderr()))?;
    // What a task says that panics is no exception.
    panic::set_hook(Box::new(|panic| {
        let trace = Backtrace::capture();
        match trace.status() {
            BacktraceStatus::Captured => line(format_args!("{panic}\n{trace}")),
            _ => line(format_args!("{panic}")),
        }
        // It may be the last thing that this process says.
        flush(LAST_WORDS);
    }));
    Ok(())
}

/// Waits until what was said is written, or for `patience`.
pub(crate) fn flush(patience: Duration) {
    if let Some(lines) = LINES.get() {
        lines.flush(patience);
    }
}

/// See [`say!`]. Names of strangers are in what is said.
pub(crate) fn line(what: fmt::Arguments<'_>) {
    text(clean_lines(&format!("{what}\n")));
}

/// Says it as it is.
pub(crate) fn text(text: String) {
    match LINES.get() {
        Some(lines) => lines.push(text.into_bytes()),
        None => {
            // There is nobody else to tell.
            let _unheard = io::stderr().write_all(text.as_bytes());
        }
    }
}

/// Standard error for whoever wants a writer; an event is one write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        text(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines on their way.
#[derive(Debug, Default)]
struct Lines {
    state: Mutex<State>,
    /// There is something to write.
    come: Condvar,
    /// Nothing is left to write.
    gone: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Line>,
    bytes: usize,
    /// Dropped, or refused by the other end, since it was last said.
    lost: u64,
    /// The writer is in its system call.
    is_writing: bool,
    /// The last one was refused: it is tried again when there is more to say, not at once.
    is_refused: bool,
}

#[derive(Debug)]
struct Line {
    bytes: Vec<u8>,
    /// Lost lines it tells of, or itself.
    stands_for: u64,
}

impl Line {
    fn of_lost(lost: u64) -> Self {
        let lines = if lost == 1 { "line" } else { "lines" };
        Self { bytes: format!("{lost} {lines} lost here: nobody took them\n").into_bytes(), stands_for: lost }
    }
}

impl Lines {
    /// Whoever panicked with it left it whole: nothing below can fail half way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, bytes: Vec<u8>) {
        let mut state = self.state();
        state.is_refused = false;
        if state.bytes + bytes.len() > WAITING_BYTES_MAX {
            state.lost += 1;
            return;
        }
        if state.lost > 0 {
            // Where they would have been.
            let lost = std::mem::take(&mut state.lost);
            state.put(Line::of_lost(lost));
        }
        state.put(Line { bytes, stands_for: 1 });
        drop(state);
        self.come.notify_one();
    }

    /// Writes for ever.
    fn run(&self, to: &mut impl Write) {
        loop {
            let line = self.next();
            let done = to.write_all(&line.bytes).and_then(|()| to.flush());
            let mut state = self.state();
            state.is_writing = false;
            state.is_refused = done.is_err();
            if state.is_refused {
                state.lost += line.stands_for;
            }
            if state.is_idle() {
                self.gone.notify_all();
            }
        }
    }

    fn next(&self) -> Line {
        let idle = |state: &mut State| state.is_idle();
        let mut state = self.come.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        match state.waiting.pop_front() {
            Some(line) => {
                state.bytes -= line.bytes.len();
                line
            }
            None => Line::of_lost(std::mem::take(&mut state.lost)),
        }
    }

    fn flush(&self, patience: Duration) {
        let busy = |state: &mut State| state.is_writing || !state.is_idle();
        // Either way there is nothing left to do.
        let _is_over = self.gone.wait_timeout_while(self.state(), patience, busy);
    }
}

impl State {
    fn put(&mut self, line: Line) {
        self.bytes += line.bytes.len();
        self.waiting.push_back(line);
    }

    /// Whether there is nothing to write at the moment.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && (self.lost == 0 || self.is_refused)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    /// A reader that takes what it is allowed to.
    struct Reader {
        taken: mpsc::Sender<String>,
        /// For each write whether it succeeds; none: it waits.
        turns: mpsc::Receiver<bool>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.turns.recv() {
                Ok(true) => {}
                Ok(false) => return Err(io::Error::other("no space left")),
                // The test is over.
                Err(_) => loop {
                    thread::park();
                },
            }
            self.taken.send(String::from_utf8_lossy(bytes).into_owned()).expect("the test listens");
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn scene() -> (Arc<Lines>, mpsc::Sender<bool>, mpsc::Receiver<String>) {
        let lines = Arc::new(Lines::default());
        let (allow, turns) = mpsc::channel();
        let (taken, take) = mpsc::channel();
        let writer = Arc::clone(&lines);
        thread::Builder::new().spawn(move || writer.run(&mut Reader { taken, turns })).expect("a thread");
        (lines, allow, take)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn what_a_reader_does_not_take_is_dropped_and_counted() {
        let (lines, allow, take) = scene();
        let line = format!("{}\n", "x".repeat(1023));
        lines.push(line.clone().into_bytes());
        while !lines.state().is_writing {
            thread::yield_now();
        }
        for _ in 1..1000 {
            lines.push(line.clone().into_bytes());
        }
        lines.flush(Duration::from_millis(1));
        (0..1000).for_each(|_| allow.send(true).expect("it writes"));
        lines.flush(LONG);
        let taken: Vec<String> = take.try_iter().collect();
        let (last, whole) = taken.split_last().expect("something");
        assert!(whole.iter().all(|taken| *taken == line));
        assert!(whole.len() < 300, "{} lines waited", whole.len());
        assert_eq!(*last, format!("{} lines lost here: nobody took them\n", 1000 - whole.len()));
    }

    #[test]
    fn what_is_refused_is_counted_and_said_with_the_next_line() {
        let (lines, allow, take) = scene();
        // The first, then what tells of it, and the second.
        (0..3).for_each(|_| allow.send(false).expect("it writes"));
        for name in ["a\n", "b\n"] {
            lines.push(name.into());
            lines.flush(LONG);
        }
        (0..2).for_each(|_| allow.send(true).expect("it writes"));
        lines.push("c\n".into());
        lines.flush(LONG);
        let taken: Vec<String> = take.try_iter().collect();
        assert_eq!(taken, ["2 lines lost here: nobody took them\n", "c\n"]);
    }
}
