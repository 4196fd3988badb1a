//! Configurations that SPDK has saved or that guides print, given to `raceline serve -c` and `config restore`.
