//! The device grammar: what it means, what it refuses and why, and that it round-trips.
#![allow(clippy::unwrap_used, reason = "a test program")]

use proptest::prelude::*;
use raceline_bdev::{
    Backing, BdevError, BlockSize, ByteSize, Delays, DeviceSpec, ErrorRule, OpKind,
};
use std::time::Duration;

fn parse(text: &str) -> DeviceSpec {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_kind_and_option() {
    let ram = parse("ram:64M,bs=4096,readonly,uuid=6ba7b810-9dad-41d1-80b4-00c04fd430c8");
    assert_eq!(ram.backing, Backing::Ram { size: ByteSize(64 << 20), huge_pages: false });
    assert_eq!((ram.block_size, ram.physical_block_size), (Some(BlockSize::B4096), None));
    assert!(ram.read_only);
    assert_eq!(ram.uuid.unwrap().as_bytes()[..2], [0x6b, 0xa7]);
    let huge = parse("ram:1GiB,hugepages").backing;
    assert_eq!(huge, Backing::Ram { size: ByteSize(1 << 30), huge_pages: true });
    assert_eq!(parse("ram:64M,pbs=512").physical_block_size, Some(512));
    assert_eq!(parse("null:1M,bs=4096,pbs=16k").physical_block_size, Some(16 << 10));
    assert_eq!(parse("null:1T").backing, Backing::Null { size: ByteSize(1 << 40) });
    let file = |path: &str, size, buffered| Backing::File { path: path.into(), size, buffered };
    assert_eq!(parse("file:/a").backing, file("/a", None, false));
    let sized = file("/a b:c", Some(ByteSize(512)), true);
    assert_eq!(parse("file:/a b:c,buffered,size=512").backing, sized);
    assert_eq!(parse("block:/dev/sdb").backing, Backing::Block { path: "/dev/sdb".into() });
    let path = |path: &str| Backing::Path { path: path.into() };
    for bare in ["/dev/sdb", "disk.img", "./ram", "/srv/a:b", "./x:y"] {
        assert_eq!(parse(bare).backing, path(bare));
    }
    // What only files have makes a bare path a file.
    assert_eq!(parse("disk.img,size=1M").backing, file("disk.img", Some(ByteSize(1 << 20)), false));
    // Commas and backslashes in paths.
    assert_eq!(parse(r"file:/a\,b\\c\d,buffered").backing, file(r"/a,b\c\d", None, true));
}

#[test]
fn test_wrappers() {
    let us = Duration::from_micros;
    assert_eq!(parse("ram:1M,delay=100").delay, Some(Delays::all(us(100))));
    let delays = Delays::all(us(0)).with(OpKind::Read, us(5)).with(OpKind::Flush, us(7));
    assert_eq!(parse("ram:1M,delay=flush:7+read:5").delay, Some(delays));
    let spec = parse("ram:1M,error=write/10+read@8-15:gone+all@3");
    let rule = |op, blocks, every: u64, error| ErrorRule {
        op,
        blocks,
        every: every.try_into().unwrap(),
        error,
    };
    assert_eq!(
        spec.errors,
        [
            rule(Some(OpKind::Write), None, 10, None),
            rule(Some(OpKind::Read), Some(8..=15), 1, Some(BdevError::Gone)),
            rule(None, Some(3..=3), 1, None),
        ],
    );
}

/// Each message is one line that names the culprit and says what to do.
#[test]
fn what_is_wrong_is_said() {
    for (text, expected) in [
        ("", "empty; give e.g. ram:64M"),
        ("ram", "`ram` needs a size, e.g. ram:64M"),
        ("ram:", "`ram` needs a size, e.g. ram:64M"),
        ("file:", "`file` needs a path"),
        ("block", "`block` needs a path"),
        ("ram:64X", "`64X` is not a size"),
        ("ram:64MB", "write M or MiB"),
        ("ram:0", "at least one block of 512 bytes"),
        ("ram:512,bs=4096", "at least one block of 4096 bytes"),
        ("ram:1000", "the size 1000 is not a multiple of the block size 512"),
        ("file:/a,size=6k,bs=4096", "the size 6k is not a multiple of the block size 4096"),
        ("ramdisk:64M", "unknown kind `ramdisk`: use ram:, null:, file: or block:"),
        ("ram:64M,bs=1024", "block size `1024` is not supported: use bs=512 or bs=4096"),
        ("ram:64M,pbs=1000", "physical block size `1000` is not supported: use a power of two"),
        ("ram:64M,pbs=256", "from pbs=512 to pbs=16777216"),
        ("null:64M,pbs=32M", "physical block size `32M` is not supported"),
        ("null:64M,pbs=x", "physical block size `x` is not supported"),
        ("ram:64M,pbs", "`pbs`: write pbs=512"),
        ("ram:64M,pbs=512,bs=4096", "the physical block size 512 is below the block size 4096"),
        ("file:/a,pbs=512", "`pbs` does not apply to file devices, only to ram or null"),
        ("ram:64M,bs", "`bs`: write bs=512 or bs=4096"),
        ("ram:64M,readonly=1", "`readonly=1`: write readonly, without a value"),
        ("ram:64M,size=1M", "`size` does not apply to ram devices, only to file"),
        ("block:/dev/sdb,buffered", "`buffered` does not apply to block devices, only to file"),
        ("null:1G,hugepages", "`hugepages` does not apply to null devices, only to ram"),
        ("ram:64M,bs=512,bs=4096", "`bs` is given twice"),
        ("ram:64M,uuid=12", "`12` is not a UUID"),
        ("ram:64M,uuid=00000000-0000-0000-0000-000000000000", "is not a UUID"),
        ("ram:64M,", "unknown option ``"),
        ("/a,b.img", "unknown option `b.img`: known are"),
        ("ram:64M,delay=soon", "`soon` is not a delay"),
        ("ram:64M,delay=trim:1", "`trim:1` is not a delay"),
        ("ram:64M,error=write/0", "`write/0` is not an error rule"),
        ("ram:64M,error=read@9-8", "`read@9-8` is not an error rule"),
        ("ram:64M,error=write:boom", "`write:boom` is not an error rule"),
    ] {
        let message = text.parse::<DeviceSpec>().unwrap_err().to_string();
        assert!(message.starts_with(&format!("device `{text}`: ")), "{message}");
        assert!(message.contains(expected), "{text}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

fn any_spec() -> impl Strategy<Value = DeviceSpec> {
    let path = r"(/|\./)[ -~é]{1,20}";
    let size = (1..1_u64 << 20).prop_map(|blocks| ByteSize(blocks * 4096));
    let backing = prop_oneof![
        (size.clone(), any::<bool>())
            .prop_map(|(size, huge_pages)| Backing::Ram { size, huge_pages }),
        size.clone().prop_map(|size| Backing::Null { size }),
        (path, proptest::option::of(size), any::<bool>()).prop_map(|(path, size, buffered)| {
            Backing::File { path: path.into(), size, buffered }
        }),
        path.prop_map(|path| Backing::Block { path: path.into() }),
        path.prop_map(|path| Backing::Path { path: path.into() }),
    ];
    let micros = any::<[u32; 8]>().prop_map(|micros| {
        OpKind::ALL
            .into_iter()
            .zip(micros)
            .fold(Delays::all(Duration::ZERO), |delays, (kind, us)| {
                delays.with(kind, Duration::from_micros(us.into()))
            })
    });
    let delays = prop_oneof![
        any::<u32>().prop_map(|us| Delays::all(Duration::from_micros(us.into()))),
        micros,
    ];
    let errors = [None, Some(BdevError::NoSpace), Some(BdevError::Gone), Some(BdevError::Unknown)];
    let rule = (
        proptest::option::of(proptest::sample::select(OpKind::ALL.to_vec())),
        proptest::option::of((any::<u32>(), any::<u32>())),
        1..1000_u64,
        proptest::sample::select(errors.to_vec()),
    )
        .prop_map(|(op, blocks, every, error)| ErrorRule {
            op,
            blocks: blocks.map(|(a, b)| u64::from(a.min(b))..=u64::from(a.max(b))),
            every: every.try_into().unwrap(),
            error,
        });
    (
        backing,
        proptest::option::of(proptest::sample::select(vec![BlockSize::B512, BlockSize::B4096])),
        any::<bool>(),
        proptest::option::of((1..u128::MAX).prop_map(uuid::Uuid::from_u128)),
        (any::<bool>(), proptest::option::of(delays), proptest::option::of(12..25_u32)),
        proptest::collection::vec(rule, 0..3),
    )
        .prop_map(
            |(backing, block_size, read_only, uuid, (uncorrectable, delay, exponent), errors)| {
                let in_memory = matches!(backing, Backing::Ram { .. } | Backing::Null { .. });
                DeviceSpec {
                    backing,
                    block_size,
                    read_only,
                    shared: false,
                    uuid,
                    uncorrectable,
                    delay,
                    errors,
                    physical_block_size: exponent
                        .filter(|_| in_memory)
                        .map(|exponent| 1 << exponent),
                    io_boundary_bytes: 0,
                    numa_node: None,
                }
            },
        )
}

proptest! {
    #[test]
    fn display_parses_back(spec in any_spec()) {
        let text = spec.to_string();
        prop_assert_eq!(text.parse(), Ok(spec), "{}", text);
    }

    #[test]
    fn no_text_panics(text in r"(ram|null|file|block|)[:,=]?[ -~é\\,:=@/+-]{0,40}") {
        if let Ok(spec) = text.parse::<DeviceSpec>() {
            prop_assert_eq!(spec.to_string().parse(), Ok(spec));
        }
    }
}
