//! NVMe/TCP host: queue pairs, controllers, remote namespaces as block devices.
