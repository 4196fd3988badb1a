//! Where a device is plugged in, in the spellings that SPDK takes.

use std::fmt;
use std::str::FromStr;

/// Domain, bus, device and function of a PCI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Not the address of a PCI device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no PCI address: write DOMAIN:BUS:DEVICE.FUNCTION as lspci -D does, e.g. 0000:00:04.0"
)]
pub struct PciAddressError(String);

impl PciAddress {
    /// Devices on a bus.
    const DEVICES: u8 = 32;
    /// Functions of a device.
    const FUNCTIONS: u8 = 8;
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// `0000:00:04.0`, `0000.00.04.0`, and without domain (`00:04.0`) or function (`0000:00:04`, `00:04`).
    fn from_str(text: &str) -> Result<Self, PciAddressError> {
        parse(text).ok_or_else(|| PciAddressError(text.escape_debug().to_string()))
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let dots = !text.contains(':');
    // With colons, a dot stands before the function only.
    let (place, function) = match text.rsplit_once('.') {
        Some((place, function)) if !dots => (place, Some(function)),
        _ => (text, None),
    };
    let parts: Vec<&str> = place.split(if dots { '.' } else { ':' }).collect();
    let (domain, bus, device, function) = match (parts.as_slice(), function) {
        ([domain, bus, device, function], None) if dots => (*domain, *bus, *device, *function),
        ([bus, device, function], None) if dots => ("0", *bus, *device, *function),
        ([domain, bus, device], function) => (*domain, *bus, *device, function.unwrap_or("0")),
        ([bus, device], function) => ("0", *bus, *device, function.unwrap_or("0")),
        _ => return None,
    };
    let hexadecimal = |text: &str| {
        let is_it = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_it.then(|| u32::from_str_radix(text, 16).ok()).flatten()
    };
    let small = |text: &str| u8::try_from(hexadecimal(text)?).ok();
    Some(PciAddress {
        domain: hexadecimal(domain)?,
        bus: small(bus)?,
        device: small(device).filter(|device| *device < PciAddress::DEVICES)?,
        function: small(function).filter(|function| *function < PciAddress::FUNCTIONS)?,
    })
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_an_address() {
        for (text, canonical) in [
            ("0000:00:04.0", "0000:00:04.0"),
            ("0000.00.04.0", "0000:00:04.0"),
            ("00:04.0", "0000:00:04.0"),
            ("00.04.1", "0000:00:04.1"),
            ("0000:00:04", "0000:00:04.0"),
            ("5e:1f", "0000:5e:1f.0"),
            ("5e.1f", "0000:5e:1f.0"),
            ("10000:E1:00.7", "10000:e1:00.7"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), canonical, "{text}");
        }
        for text in [
            "",
            ":",
            ".",
            "0000",
            "0000:00:20.0",
            "0000:00:04.8",
            "0000:100:04.0",
            "0:0:0:0",
            "+1:2.0",
            "0000:00:04.0.0",
            "0x1:2.0",
            "00:04.0 ",
            "000000000:00:04.0x",
            "a.b.c.d.e",
            "127.0.0.1.",
            "fffffffff:00:00.0",
            "00:04.",
        ] {
            let error = text.parse::<PciAddress>().unwrap_err();
            assert!(error.to_string().contains("e.g. 0000:00:04.0"), "{error}");
        }
    }
}
