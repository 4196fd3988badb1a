//! One thread per core: completion-based socket and file I/O, timers, mailboxes, buffers.
