//! What the bits of a field mean, for `--human-readable`: lines below the field, in nvme-cli's form and the specification's terms.

use std::fmt::Write as _;

use super::fields::hex;
use super::log::{celsius, units};

/// Some bits of a field: the highest, the lowest, and what they say.
pub(super) type Bits = (u8, u8, Says);

/// What a number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// Whether there is something.
    Has(&'static str),
    /// The meanings of 0 and of 1.
    Either(&'static str, &'static str),
    /// The meanings of 0 and the numbers behind it.
    One(&'static [&'static str]),
    /// A number of something.
    Count(&'static str),
    /// A power of two, in bytes.
    Power(&'static str),
    /// A temperature in kelvin.
    Kelvin(&'static str),
    /// A size in bytes.
    Size(&'static str),
}
use Says::{Count, Either, Has, Kelvin, One, Power, Size};

/// The lines for a field of so many bytes. Bits without a meaning are shown if one of them is set.
pub(super) fn lines(value: u128, len: usize, bits: &[Bits]) -> String {
    let width = u8::try_from(len * 8).unwrap_or(128);
    let mut text = String::new();
    let mut above = width;
    let reserved = |text: &mut String, from: u8, to: u8| {
        let number = part(value, to.saturating_sub(1), from);
        if from < to && number != 0 {
            let _ = writeln!(text, "  [{}:{from}] : {}\tReserved", to - 1, hex(number));
        }
    };
    for &(high, low, says) in bits {
        reserved(&mut text, high + 1, above);
        let number = part(value, high, low);
        let _ = writeln!(text, "  [{high}:{low}] : {}\t{}", hex(number), meaning(number, says));
        above = low;
    }
    reserved(&mut text, 0, above);
    text.push('\n');
    text
}

/// The number in these bits.
fn part(value: u128, high: u8, low: u8) -> u128 {
    let len = u32::from(high.saturating_sub(low)) + 1;
    let mask = 1_u128.checked_shl(len).map_or(u128::MAX, |over| over - 1);
    value.checked_shr(low.into()).unwrap_or(0) & mask
}

fn meaning(number: u128, says: Says) -> String {
    match says {
        Has(what) if number == 0 => format!("{what}: not supported"),
        Has(what) => format!("{what}: supported"),
        Either(zero, one) => if number == 0 { zero } else { one }.to_owned(),
        One(all) => {
            let known = usize::try_from(number).ok().and_then(|number| all.get(number));
            known.copied().unwrap_or("Reserved").to_owned()
        }
        Count(what) => format!("{what}: {number}"),
        Power(what) => match number {
            0..128 => format!("{what}: {} bytes", 1_u128 << number),
            _ => what.to_owned(),
        },
        Kelvin(what) if number == 0 => format!("{what}: not reported"),
        Kelvin(what) => format!("{what}: {}", celsius(number)),
        Size(what) => format!("{what}: {}", units(number)),
    }
}

/// What the bits of a field of a controller mean.
pub(super) fn of_controller(name: &str) -> Option<&'static [Bits]> {
    let found = CONTROLLER.iter().find(|(known, _)| *known == name);
    found.map(|(_, bits)| *bits)
}

/// What the bits of a field of a namespace mean.
pub(super) fn of_namespace(name: &str) -> Option<&'static [Bits]> {
    let found = NAMESPACE.iter().find(|(known, _)| *known == name);
    found.map(|(_, bits)| *bits)
}

/// NVM Express Base Specification, figure "Identify Controller Data Structure".
const CONTROLLER: &[(&str, &[Bits])] = &[
    (
        "cmic",
        &[
            (3, 3, Has("Asymmetric Namespace Access reporting")),
            (
                2,
                2,
                Either("A PCI function or a controller over fabrics", "An SR-IOV virtual function"),
            ),
            (
                1,
                1,
                Either(
                    "The subsystem has one controller",
                    "The subsystem may have several controllers",
                ),
            ),
            (0, 0, Either("The subsystem has one port", "The subsystem may have several ports")),
        ],
    ),
    ("ver", &[(31, 16, Count("Major")), (15, 8, Count("Minor")), (7, 0, Count("Tertiary"))]),
    (
        "oaes",
        &[
            (31, 31, Has("Discovery Log Page Change notices")),
            (27, 27, Has("Zone Descriptor Changed notices")),
            (20, 20, Has("Cross-Controller Reset Completed notices")),
            (19, 19, Has("Allocated Namespace Attribute notices")),
            (17, 17, Has("Reachability Group notices")),
            (16, 16, Has("Temperature Threshold Hysteresis Recovery event")),
            (15, 15, Has("Normal NVM Subsystem Shutdown event")),
            (14, 14, Has("Endurance Group Event Aggregate Log Page Change notices")),
            (13, 13, Has("LBA Status Information notices")),
            (12, 12, Has("Predictable Latency Event Aggregate Log Change notices")),
            (11, 11, Has("Asymmetric Namespace Access Change notices")),
            (9, 9, Has("Firmware Activation notices")),
            (8, 8, Has("Namespace Attribute notices")),
        ],
    ),
    (
        "ctratt",
        &[
            (19, 19, Has("Flexible Data Placement")),
            (18, 18, Has("Reservations and Host Identifier interaction")),
            (17, 17, Has("Host Memory Buffer restrictions in non-operational power states")),
            (16, 16, Either("MDTS counts metadata", "MDTS does not count metadata")),
            (15, 15, Has("Extended LBA formats")),
            (14, 14, Has("Delete NVM Set")),
            (13, 13, Has("Delete Endurance Group")),
            (12, 12, Has("Variable Capacity Management")),
            (11, 11, Has("Fixed Capacity Management")),
            (10, 10, Has("Multi-Domain Subsystem")),
            (9, 9, Has("UUID List")),
            (8, 8, Has("SQ Associations")),
            (7, 7, Has("Namespace Granularity")),
            (6, 6, Has("Traffic Based Keep Alive")),
            (5, 5, Has("Predictable Latency Mode")),
            (4, 4, Has("Endurance Groups")),
            (3, 3, Has("Read Recovery Levels")),
            (2, 2, Has("NVM Sets")),
            (1, 1, Has("Non-Operational Power State Permissive Mode")),
            (0, 0, Has("128-bit Host Identifier")),
        ],
    ),
    (
        "cntrltype",
        &[(
            7,
            0,
            One(&[
                "Not reported",
                "I/O controller",
                "Discovery controller",
                "Administrative controller",
            ]),
        )],
    ),
    (
        "nvmsr",
        &[
            (1, 1, Either("Not part of an NVMe enclosure", "Part of an NVMe enclosure")),
            (0, 0, Either("Not part of an NVMe storage device", "Part of an NVMe storage device")),
        ],
    ),
    (
        "vwci",
        &[
            (7, 7, Either("The number of writes is not valid", "The number of writes is valid")),
            (6, 0, Count("Writes of Vital Product Data that remain")),
        ],
    ),
    (
        "mec",
        &[
            (1, 1, Has("Management endpoint on a PCIe port")),
            (0, 0, Has("Management endpoint on an SMBus or I2C port")),
        ],
    ),
    (
        "oacs",
        &[
            (11, 11, Has("Host Managed Live Migration")),
            (10, 10, Has("Command and Feature Lockdown")),
            (9, 9, Has("Get LBA Status")),
            (8, 8, Has("Doorbell Buffer Config")),
            (7, 7, Has("Virtualization Management")),
            (6, 6, Has("NVMe-MI Send and Receive")),
            (5, 5, Has("Directives")),
            (4, 4, Has("Device Self-test")),
            (3, 3, Has("Namespace Management and Attachment")),
            (2, 2, Has("Firmware Commit and Image Download")),
            (1, 1, Has("Format NVM")),
            (0, 0, Has("Security Send and Receive")),
        ],
    ),
    (
        "frmw",
        &[
            (5, 5, Has("Detection of overlapping firmware updates")),
            (4, 4, Has("Firmware activation without a reset")),
            (3, 1, Count("Firmware slots")),
            (0, 0, Either("Firmware slot 1 can be written", "Firmware slot 1 is read only")),
        ],
    ),
    (
        "lpa",
        &[
            (6, 6, Has("Telemetry data area 4")),
            (5, 5, Has("Supported Log Pages, Feature Identifiers, Commands and Effects logs")),
            (4, 4, Has("Persistent Event log")),
            (3, 3, Has("Telemetry logs")),
            (2, 2, Has("Extended data of Get Log Page")),
            (1, 1, Has("Commands Supported and Effects log")),
            (0, 0, Has("SMART log of each namespace")),
        ],
    ),
    ("avscc", &[(0, 0, Either("Vendor specific formats", "The format of the specification"))]),
    ("apsta", &[(0, 0, Has("Autonomous power state transitions"))]),
    ("wctemp", &[(15, 0, Kelvin("Warning Composite Temperature Threshold"))]),
    ("cctemp", &[(15, 0, Kelvin("Critical Composite Temperature Threshold"))]),
    ("tnvmcap", &[(127, 0, Size("Total NVM Capacity"))]),
    ("unvmcap", &[(127, 0, Size("Unallocated NVM Capacity"))]),
    (
        "rpmbs",
        &[
            (31, 24, Count("Access size, in units of 512 bytes, less one")),
            (23, 16, Count("Size of a unit, in units of 128 KiB, less one")),
            (5, 3, One(&["HMAC SHA-256"])),
            (2, 0, Count("Replay Protected Memory Block units")),
        ],
    ),
    (
        "dsto",
        &[
            (1, 1, Has("Host-Initiated Refresh")),
            (
                0,
                0,
                Either(
                    "One self-test at a time in each controller",
                    "One self-test at a time in the subsystem",
                ),
            ),
        ],
    ),
    ("hctma", &[(0, 0, Has("Host controlled thermal management"))]),
    ("mntmt", &[(15, 0, Kelvin("Minimum Thermal Management Temperature"))]),
    ("mxtmt", &[(15, 0, Kelvin("Maximum Thermal Management Temperature"))]),
    (
        "sanicap",
        &[
            (
                31,
                30,
                One(&[
                    "Whether media are modified after a sanitize operation is not defined",
                    "Media are not modified after a sanitize operation",
                    "Media are modified after a sanitize operation",
                ]),
            ),
            (
                29,
                29,
                Either(
                    "No-Deallocate After Sanitize is possible",
                    "No-Deallocate After Sanitize is inhibited",
                ),
            ),
            (3, 3, Has("Media verification after a sanitize operation")),
            (2, 2, Has("Overwrite sanitize operation")),
            (1, 1, Has("Block erase sanitize operation")),
            (0, 0, Has("Crypto erase sanitize operation")),
        ],
    ),
    (
        "anacap",
        &[
            (
                7,
                7,
                Either(
                    "ANAGRPID cannot be chosen for a namespace",
                    "ANAGRPID can be chosen for a namespace",
                ),
            ),
            (
                6,
                6,
                Either(
                    "ANAGRPID may change while a namespace is attached",
                    "ANAGRPID does not change while a namespace is attached",
                ),
            ),
            (4, 4, Has("ANA Change state")),
            (3, 3, Has("ANA Persistent Loss state")),
            (2, 2, Has("ANA Inaccessible state")),
            (1, 1, Has("ANA Non-Optimized state")),
            (0, 0, Has("ANA Optimized state")),
        ],
    ),
    ("sqes", &[(7, 4, Power("Maximum SQ entry size")), (3, 0, Power("Required SQ entry size"))]),
    ("cqes", &[(7, 4, Power("Maximum CQ entry size")), (3, 0, Power("Required CQ entry size"))]),
    (
        "oncs",
        &[
            (12, 12, Has("Write Zeroes to a whole namespace")),
            (11, 11, Has("A larger Write Zeroes that deallocates")),
            (10, 10, Has("Copy that is fast for all formats")),
            (9, 9, Has("Copy as one atomic operation")),
            (8, 8, Has("Copy")),
            (7, 7, Has("Verify")),
            (6, 6, Has("Timestamp")),
            (5, 5, Has("Reservations")),
            (4, 4, Has("Save and Select fields of Set Features and Get Features")),
            (3, 3, Has("Write Zeroes")),
            (2, 2, Has("Dataset Management")),
            (1, 1, Has("Write Uncorrectable")),
            (0, 0, Has("Compare")),
        ],
    ),
    ("fuses", &[(0, 0, Has("Fused Compare and Write"))]),
    (
        "fna",
        &[
            (
                3,
                3,
                Either(
                    "Format NVM takes NSID FFFFFFFFh",
                    "Format NVM does not take NSID FFFFFFFFh",
                ),
            ),
            (2, 2, Has("Cryptographic erase with Format NVM")),
            (
                1,
                1,
                Either(
                    "Secure erase applies to one namespace",
                    "Secure erase applies to all namespaces",
                ),
            ),
            (
                0,
                0,
                Either(
                    "Format NVM applies to one namespace",
                    "Format NVM applies to all namespaces",
                ),
            ),
        ],
    ),
    (
        "vwc",
        &[
            (
                2,
                1,
                One(&[
                    "Whether Flush takes NSID FFFFFFFFh is not reported",
                    "Reserved",
                    "Flush does not take NSID FFFFFFFFh",
                    "Flush takes NSID FFFFFFFFh",
                ]),
            ),
            (0, 0, Either("No volatile write cache", "A volatile write cache is present")),
        ],
    ),
    ("icsvscc", &[(0, 0, Either("Vendor specific formats", "The format of the specification"))]),
    (
        "nwpc",
        &[
            (2, 2, Has("Permanent write protection")),
            (1, 1, Has("Write protection until a power cycle")),
            (0, 0, Has("Write protection")),
        ],
    ),
    (
        "ocfs",
        &[
            (4, 4, Has("Copy descriptor format 4h")),
            (3, 3, Has("Copy descriptor format 3h")),
            (2, 2, Has("Copy descriptor format 2h")),
            (1, 1, Has("Copy descriptor format 1h")),
            (0, 0, Has("Copy descriptor format 0h")),
        ],
    ),
    (
        "sgls",
        &[
            (21, 21, Has("Transport SGL Data Block descriptor")),
            (20, 20, Has("Address field of descriptors as an offset")),
            (19, 19, Has("Metadata pointer to an SGL segment")),
            (18, 18, Has("SGLs longer than the data")),
            (17, 17, Has("Metadata buffer aligned to a byte")),
            (16, 16, Has("SGL Bit Bucket descriptor")),
            (15, 8, Count("SGL Descriptor Threshold")),
            (2, 2, Has("Keyed SGL Data Block descriptor")),
            (
                1,
                0,
                One(&[
                    "SGLs: not supported",
                    "SGLs: supported, without alignment",
                    "SGLs: supported, aligned to a dword",
                ]),
            ),
        ],
    ),
    ("fcatt", &[(0, 0, Either("Dynamic controller model", "Static controller model"))]),
    ("ofcs", &[(0, 0, Has("Disconnect"))]),
];

/// NVM Command Set Specification, figure "Identify Namespace Data Structure".
const NAMESPACE: &[(&str, &[Bits])] = &[
    (
        "nsfeat",
        &[
            (7, 7, Has("Optimal Read Performance")),
            (6, 6, Has("Multiple Atomicity Mode")),
            (
                5,
                4,
                One(&[
                    "NPWG, NPWA, NPDG, NPDA and NOWS are not defined",
                    "NPWG, NPWA, NPDG, NPDA and NOWS are defined",
                    "NPWG, NPWA, NPDGL, NPDAL and NOWS are defined",
                    "NPWG, NPWA, NPDG, NPDA, NPDGL, NPDAL and NOWS are defined",
                ]),
            ),
            (
                3,
                3,
                Either("NGUID and EUI64 may be used again", "NGUID and EUI64 are never used again"),
            ),
            (2, 2, Has("Error for deallocated or unwritten blocks")),
            (1, 1, Either("AWUN, AWUPF and ACWU hold", "NAWUN, NAWUPF and NACWU hold")),
            (0, 0, Has("Thin provisioning")),
        ],
    ),
    (
        "flbas",
        &[
            (6, 5, Count("Upper bits of the LBA format in use")),
            (
                4,
                4,
                Either(
                    "Metadata are in a buffer of their own",
                    "Metadata are at the end of each block",
                ),
            ),
            (3, 0, Count("LBA format in use, lower bits")),
        ],
    ),
    (
        "mc",
        &[
            (1, 1, Has("Metadata in a buffer of their own")),
            (0, 0, Has("Metadata at the end of each block")),
        ],
    ),
    (
        "dpc",
        &[
            (4, 4, Has("Protection information as the last bytes of metadata")),
            (3, 3, Has("Protection information as the first bytes of metadata")),
            (2, 2, Has("Protection information type 3")),
            (1, 1, Has("Protection information type 2")),
            (0, 0, Has("Protection information type 1")),
        ],
    ),
    (
        "dps",
        &[
            (
                3,
                3,
                Either(
                    "Protection information is the last bytes of metadata",
                    "Protection information is the first bytes of metadata",
                ),
            ),
            (
                2,
                0,
                One(&[
                    "Protection information is disabled",
                    "Protection information type 1",
                    "Protection information type 2",
                    "Protection information type 3",
                ]),
            ),
        ],
    ),
    (
        "nmic",
        &[
            (1, 1, Either("Not a dispersed namespace", "A dispersed namespace")),
            (0, 0, Either("A private namespace", "May be attached to several controllers")),
        ],
    ),
    (
        "rescap",
        &[
            (
                7,
                7,
                Either(
                    "Ignore Existing Key: revision 1.2.1 or earlier",
                    "Ignore Existing Key: revision 1.3 or later",
                ),
            ),
            (6, 6, Has("Exclusive Access - All Registrants")),
            (5, 5, Has("Write Exclusive - All Registrants")),
            (4, 4, Has("Exclusive Access - Registrants Only")),
            (3, 3, Has("Write Exclusive - Registrants Only")),
            (2, 2, Has("Exclusive Access")),
            (1, 1, Has("Write Exclusive")),
            (0, 0, Has("Persist Through Power Loss")),
        ],
    ),
    (
        "fpi",
        &[
            (7, 7, Has("Format Progress Indicator")),
            (6, 0, Count("Percentage that remains to be formatted")),
        ],
    ),
    (
        "dlfeat",
        &[
            (
                4,
                4,
                Either(
                    "Guard of deallocated blocks: FFFFh",
                    "Guard of deallocated blocks: the CRC of their bytes",
                ),
            ),
            (3, 3, Has("Deallocate bit of Write Zeroes")),
            (
                2,
                0,
                One(&[
                    "What deallocated blocks read is not reported",
                    "Deallocated blocks read 00h",
                    "Deallocated blocks read FFh",
                ]),
            ),
        ],
    ),
    ("nvmcap", &[(127, 0, Size("NVM Capacity"))]),
    ("nsattr", &[(0, 0, Either("Not write protected", "Write protected"))]),
];

/// Of the SMART log.
pub(super) const CRITICAL_WARNING: &[Bits] = &[
    (
        5,
        5,
        Either(
            "The persistent memory region works",
            "The persistent memory region is unreliable or read only",
        ),
    ),
    (
        4,
        4,
        Either("The backup of volatile memory works", "The backup of volatile memory has failed"),
    ),
    (3, 3, Either("Media can be written", "All media are read only")),
    (2, 2, Either("The subsystem is reliable", "The reliability of the subsystem is degraded")),
    (
        1,
        1,
        Either("The temperature is within its thresholds", "A temperature threshold is exceeded"),
    ),
    (0, 0, Either("There is enough spare capacity", "Spare capacity is below its threshold")),
];

/// Of the SMART log.
pub(super) const ENDURANCE_GROUPS: &[Bits] = &[
    (3, 3, Either("No endurance group is read only", "An endurance group is read only")),
    (
        2,
        2,
        Either(
            "All endurance groups are reliable",
            "The reliability of an endurance group is degraded",
        ),
    ),
    (
        0,
        0,
        Either(
            "All endurance groups have spare capacity",
            "Spare capacity of an endurance group is low",
        ),
    ),
];

/// The status of a command, without the phase tag.
pub(super) const STATUS: &[Bits] = &[
    (14, 14, Either("It may be tried again", "Do Not Retry")),
    (
        13,
        13,
        Either(
            "No more information is in the Error Information log",
            "More: the Error Information log says more",
        ),
    ),
    (12, 11, Count("Command Retry Delay")),
    (
        10,
        8,
        One(&[
            "Generic Command Status",
            "Command Specific Status",
            "Media and Data Integrity Errors",
            "Path Related Status",
            "Reserved",
            "Reserved",
            "Reserved",
            "Vendor Specific",
        ]),
    ),
    (7, 0, Count("Status Code")),
];

/// Where in a command an error is; FFFFh is nowhere.
pub(super) const PARAMETER: &[Bits] =
    &[(10, 8, Count("Bit of the byte")), (7, 0, Count("Byte of the command"))];

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::{event, identify};

    use super::*;

    #[test]
    fn bits_are_shown_with_what_they_mean_and_reserved_ones_if_they_are_set() {
        let text = lines(0x29, 1, of_controller("frmw").unwrap());
        let expected = "  [5:5] : 0x1\tDetection of overlapping firmware updates: supported
  [4:4] : 0\tFirmware activation without a reset: not supported
  [3:1] : 0x4\tFirmware slots: 4
  [0:0] : 0x1\tFirmware slot 1 is read only

";
        assert_eq!(text, expected);
        let text = lines(0xe8, 1, of_controller("vwc").unwrap());
        assert!(text.starts_with("  [7:3] : 0x1d\tReserved\n  [2:1] : 0\t"), "{text}");
        // Between the bits that mean something, and below them.
        let text = lines(0x0002_0002, 4, ENDURANCE_GROUPS);
        assert!(
            text.contains("[31:4] : 0x2000\tReserved") && text.contains("[1:1] : 0x1\tReserved")
        );
        assert!(lines(6, 1, &[(3, 3, Has("x"))]).ends_with("  [2:0] : 0x6\tReserved\n\n"));
    }

    #[test]
    fn numbers_are_in_their_units() {
        let of = |name, value, len| lines(value, len, of_controller(name).unwrap());
        assert_eq!(
            of("sqes", 0x66, 1).lines().next().unwrap(),
            "  [7:4] : 0x6\tMaximum SQ entry size: 64 bytes"
        );
        assert!(of("wctemp", 343, 2).contains("70°C (343 Kelvin)"));
        assert!(of("cctemp", 0, 2).contains("not reported"));
        assert!(of("tnvmcap", 480_103_981_056, 16).contains("Total NVM Capacity: 480.10 GB"));
        assert!(of("cntrltype", 2, 1).contains("Discovery controller"));
        assert!(of("cntrltype", 77, 1).contains("Reserved"));
        assert_eq!(of("ver", 0x0002_0001, 4).lines().count(), 4);
    }

    /// The bits that this program's own controllers set, and those that its host looks at.
    #[test]
    fn bits_mean_what_they_mean_elsewhere_in_this_program() {
        for (name, len, bit, says) in [
            ("oaes", 4, u128::from(event::CONFIG_CROSS_CONTROLLER_RESET), "Cross-Controller Reset"),
            ("ctratt", 4, identify::CTRATT_TRAFFIC_BASED_KEEP_ALIVE.into(), "Traffic Based Keep"),
            ("oacs", 2, identify::OACS_LBA_STATUS.into(), "Get LBA Status"),
            ("oacs", 2, identify::OACS_NAMESPACE_MANAGEMENT.into(), "Namespace Management"),
            ("lpa", 1, identify::LPA_EXTENDED.into(), "Extended data"),
            ("oncs", 2, identify::ONCS_WRITE_ZEROES.into(), "Write Zeroes"),
            ("oncs", 2, identify::ONCS_RESERVATIONS.into(), "Reservations"),
            ("oncs", 2, identify::ONCS_VERIFY.into(), "Verify"),
            ("oncs", 2, identify::ONCS_COPY.into(), "Copy"),
            ("sgls", 4, identify::SGLS_KEYED.into(), "Keyed SGL"),
            ("sgls", 4, identify::SGLS_TRANSPORT.into(), "Transport SGL"),
        ] {
            let text = lines(bit, len, of_controller(name).unwrap());
            let set: Vec<&str> = text.lines().filter(|line| line.contains("0x1\t")).collect();
            assert!(set.len() == 1 && set[0].contains(says), "{name}: {set:?}");
        }
    }

    /// Each bit has one meaning at most, and bits go from the highest to the lowest.
    #[test]
    fn no_bit_means_two_things() {
        let alone = [CRITICAL_WARNING, ENDURANCE_GROUPS, STATUS, PARAMETER];
        let tables = CONTROLLER.iter().chain(NAMESPACE).map(|(name, bits)| (*name, *bits));
        for (name, bits) in tables.chain(alone.map(|bits| ("", bits))) {
            let mut above = 128;
            for &(high, low, says) in bits {
                assert!(high < above && low <= high, "{name} [{high}:{low}]");
                let is_one_bit = matches!(says, Has(_) | Either(..));
                assert!(!is_one_bit || high == low, "{name} [{high}:{low}]");
                above = low;
            }
        }
    }
}
