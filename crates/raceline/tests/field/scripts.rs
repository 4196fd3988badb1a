//! RPC calls as guides and platforms make them.
