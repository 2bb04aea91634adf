//! JSON as OpenZFS prints it.
