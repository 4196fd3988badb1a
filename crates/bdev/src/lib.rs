//! Block devices: RAM, null, files, block devices, and wrappers that delay or fail.
