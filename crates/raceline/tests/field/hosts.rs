//! Hosts that are not quite what the specification says, and that other targets admit.
