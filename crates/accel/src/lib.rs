//! CRC32C and other data operations, on the CPU or on offload engines.
