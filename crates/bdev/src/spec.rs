//! The device grammar of the command line, parsed into [`DeviceSpec`].
//!
//! ```text
//! DEVICE   ram:SIZE[,hugepages] | null:SIZE | file:PATH[,size=SIZE][,buffered] | block:PATH | PATH
//!          each with [,bs=512|4096] [,pbs=BYTES] [,readonly] [,shared] [,uuid=UUID] [,uncorrectable]
//!          [,delay=DELAY] [,error=RULE[+RULE]...]
//! pbs=     the physical block size that ram: and null: report, a power of two; by default a page
//! SIZE     digits and k, M, G, T or P (also kiB, MiB...), powers of 1024 as in fio's default
//! PATH     `\,` is a comma and `\\` a backslash; a bare PATH is a block device if there is one
//!          at that path, else a file
//! uncorrectable  hosts may make blocks unreadable with Write Uncorrectable   (for tests)
//! DELAY    US, microseconds for every request, or OP:US[+OP:US]...   (for tests)
//! RULE     OP|all [@FIRST-LAST] [/N] [:KIND]                         (for tests)
//!          fails requests of that kind that touch the blocks FIRST to LAST, every Nth of them
//! OP       read | write | flush | zeroes | deallocate | copy | find | uncorrectable
//! KIND     fault | nospace | readonly | gone | unknown | transient | unsupported | internal
//! ```

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use uuid::Uuid;

use crate::delay::{DelayError, Delays};
use crate::error::{ErrorRule, RuleError};
use crate::size::{ByteSize, SizeError};

/// The largest physical block that hosts can be told of in blocks of 512 bytes (NPWG).
pub const MAX_PHYSICAL_BLOCK_BYTES: u32 = 16 << 20;

/// A device and how to open it, as given on a command line.
///
/// ```
/// use raceline_bdev::{Backing, ByteSize, DeviceSpec};
/// let spec: DeviceSpec = "file:/srv/disk.img,size=64M,bs=4096".parse()?;
/// assert_eq!(
///     spec.backing,
///     Backing::File { path: "/srv/disk.img".into(), size: Some(ByteSize(64 << 20)), buffered: false },
/// );
/// assert_eq!(spec.to_string(), "file:/srv/disk.img,size=64M,bs=4096");
/// # Ok::<(), raceline_bdev::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Where the data is.
    pub backing: Backing,
    /// The logical block size; by default the smallest that the backing can do.
    pub block_size: Option<BlockSize>,
    /// Writes are refused.
    pub read_only: bool,
    /// Other programs that say the same may have the file or block device open as well. Whoever starts them sees to it
    /// that what they do fits together.
    pub shared: bool,
    /// The identity of the device; by default derived, see [`crate::Identity`].
    pub uuid: Option<Uuid>,
    /// Takes Write Uncorrectable (for tests), see [`crate::UncorrectableBdev`].
    pub uncorrectable: bool,
    /// Delays every request (for tests).
    pub delay: Option<Delays>,
    /// Fails requests (for tests).
    pub errors: Vec<ErrorRule>,
    /// The physical block size that memory reports instead of a page: a power of two.
    pub physical_block_size: Option<u32>,
    /// The boundary that memory reports, which commands should not cross; 0: none.
    pub io_boundary_bytes: u64,
    /// The NUMA node from which memory comes, while that node has some.
    pub numa_node: Option<usize>,
}

/// Where the data of a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// In memory, gone with the process.
    Ram {
        /// Capacity.
        size: ByteSize,
        /// Explicit huge pages (`/proc/sys/vm/nr_hugepages`), else transparent ones.
        huge_pages: bool,
    },
    /// Nowhere: reads give zeroes, writes vanish.
    Null {
        /// Capacity.
        size: ByteSize,
    },
    /// In a regular file.
    File {
        /// Its path.
        path: PathBuf,
        /// Created with this size if it does not exist.
        size: Option<ByteSize>,
        /// Through the page cache instead of direct I/O.
        buffered: bool,
    },
    /// On a block device.
    Block {
        /// Its path.
        path: PathBuf,
    },
    /// At a path whose kind is found out when it is opened.
    Path {
        /// The path.
        path: PathBuf,
    },
}

/// A logical block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockSize {
    /// 512 bytes.
    B512,
    /// 4096 bytes.
    B4096,
}

impl BlockSize {
    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

impl DeviceSpec {
    /// A device with every option at its default.
    #[must_use]
    pub const fn new(backing: Backing) -> Self {
        Self {
            backing,
            block_size: None,
            read_only: false,
            shared: false,
            uuid: None,
            uncorrectable: false,
            delay: None,
            errors: Vec::new(),
            physical_block_size: None,
            io_boundary_bytes: 0,
            numa_node: None,
        }
    }
}

/// Why a text is not a device; one line that says where and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device `{spec}`: {problem}")]
pub struct SpecError {
    /// The whole text.
    pub spec: String,
    /// What is wrong with it.
    pub problem: SpecProblem,
}

/// What is wrong with the text of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecProblem {
    /// Nothing given.
    #[error("empty; give e.g. ram:64M, /srv/disk.img or /dev/nvme0n1")]
    Empty,
    /// A word before a colon that is no kind of device.
    #[error(
        "unknown kind `{0}`: use ram:, null:, file: or block: (if it is a path, write file:{0}:...)"
    )]
    UnknownKind(String),
    /// `ram` without a size or `file` without a path.
    #[error("`{0}` needs {1}, e.g. {2}")]
    MissingArgument(&'static str, &'static str, &'static str),
    /// The size does not parse.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A device without blocks.
    #[error("the size must be at least one block of {0} bytes")]
    TooSmall(u32),
    /// A size that ends inside a block.
    #[error("the size {0} is not a multiple of the block size {1}")]
    PartialBlock(ByteSize, u32),
    /// Not an option at all.
    #[error(
        "unknown option `{0}`: known are size=, buffered, hugepages, bs=, pbs=, readonly, shared, uuid=, uncorrectable, delay=, \
         error= \
         (a comma inside a path is written \\,)"
    )]
    UnknownOption(String),
    /// An option of another kind of device.
    #[error("`{option}` does not apply to {kind} devices, only to {only}")]
    Misplaced {
        /// The option.
        option: &'static str,
        /// The kind given.
        kind: &'static str,
        /// The kind that has it.
        only: &'static str,
    },
    /// Given more than once.
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    /// `bs=` lacks a value, or `readonly=` has one.
    #[error("`{0}`: write {1}")]
    OptionForm(String, &'static str),
    /// Not a block size that NVMe hosts can use here.
    #[error("block size `{0}` is not supported: use bs=512 or bs=4096")]
    BlockSize(String),
    /// Not a physical block size.
    #[error(
        "physical block size `{0}` is not supported: use a power of two from pbs=512 to pbs={MAX_PHYSICAL_BLOCK_BYTES}"
    )]
    PhysicalBlockSize(String),
    /// A physical block that is smaller than a logical one.
    #[error("the physical block size {0} is below the block size {1}: raise pbs= or leave it out")]
    PhysicalBelowLogical(u32, u32),
    /// Not a UUID.
    #[error("`{0}` is not a UUID (e.g. uuid=6ba7b810-9dad-41d1-80b4-00c04fd430c8)")]
    Uuid(String),
    /// The delay does not parse.
    #[error(transparent)]
    Delay(#[from] DelayError),
    /// The error rule does not parse.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        parse(text).map_err(|problem| SpecError { spec: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<DeviceSpec, SpecProblem> {
    let fields = split_fields(text);
    let Some((device, options)) = fields.split_first() else { return Err(SpecProblem::Empty) };
    let mut spec = DeviceSpec::new(parse_backing(device)?);
    let mut seen = Vec::with_capacity(options.len());
    for option in options {
        let name = apply_option(&mut spec, option)?;
        if seen.contains(&name) {
            return Err(SpecProblem::Twice(name));
        }
        seen.push(name);
    }
    check_size(&spec)?;
    let block_size = spec.block_size.unwrap_or(BlockSize::B512).bytes();
    match spec.physical_block_size {
        Some(bytes) if bytes < block_size => {
            Err(SpecProblem::PhysicalBelowLogical(bytes, block_size))
        }
        _ => Ok(spec),
    }
}

/// Splits at commas; `\,` and `\\` stand for the second character.
fn split_fields(text: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let field = fields.last_mut().unwrap_or_else(|| unreachable!());
        match (character, characters.peek()) {
            ('\\', Some(&escaped @ (',' | '\\'))) => {
                field.push(escaped);
                characters.next();
            }
            (',', _) => fields.push(String::new()),
            (other, _) => field.push(other),
        }
    }
    fields
}

fn parse_backing(device: &str) -> Result<Backing, SpecProblem> {
    let (kind, argument) = match device.split_once(':') {
        Some((kind, argument)) => (kind, argument),
        None if matches!(device, "ram" | "null" | "file" | "block") => (device, ""),
        None if device.is_empty() => return Err(SpecProblem::Empty),
        None => return Ok(Backing::Path { path: device.into() }),
    };
    match (kind, argument) {
        ("ram", "") => Err(SpecProblem::MissingArgument("ram", "a size", "ram:64M")),
        ("null", "") => Err(SpecProblem::MissingArgument("null", "a size", "null:1T")),
        ("file", "") => Err(SpecProblem::MissingArgument("file", "a path", "file:/srv/disk.img")),
        ("block", "") => Err(SpecProblem::MissingArgument("block", "a path", "block:/dev/sdb")),
        ("ram", size) => Ok(Backing::Ram { size: size.parse()?, huge_pages: false }),
        ("null", size) => Ok(Backing::Null { size: size.parse()? }),
        ("file", path) => Ok(Backing::File { path: path.into(), size: None, buffered: false }),
        ("block", path) => Ok(Backing::Block { path: path.into() }),
        (kind, _) if kind.contains(['/', '.']) => Ok(Backing::Path { path: device.into() }),
        (kind, _) => Err(SpecProblem::UnknownKind(kind.to_owned())),
    }
}

/// Applies one option and gives its name.
fn apply_option(spec: &mut DeviceSpec, option: &str) -> Result<&'static str, SpecProblem> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let needs = |form| value.ok_or_else(|| SpecProblem::OptionForm(option.to_owned(), form));
    let flag = |form| match value {
        None => Ok(()),
        Some(_) => Err(SpecProblem::OptionForm(option.to_owned(), form)),
    };
    match name {
        "bs" => {
            spec.block_size = Some(match needs("bs=512 or bs=4096")? {
                "512" => BlockSize::B512,
                "4096" | "4k" | "4K" => BlockSize::B4096,
                other => return Err(SpecProblem::BlockSize(other.to_owned())),
            });
            Ok("bs")
        }
        "pbs" => {
            set_physical_block_size(spec, needs("pbs=512")?)?;
            Ok("pbs")
        }
        "readonly" => {
            flag("readonly, without a value")?;
            spec.read_only = true;
            Ok("readonly")
        }
        "shared" => {
            flag("shared, without a value")?;
            let kind = kind_name(&spec.backing);
            if matches!(spec.backing, Backing::Ram { .. } | Backing::Null { .. }) {
                let only = "file or block device";
                return Err(SpecProblem::Misplaced { option: "shared", kind, only });
            }
            spec.shared = true;
            Ok("shared")
        }
        "uuid" => {
            let value = needs("uuid=UUID")?;
            let uuid = Uuid::try_parse(value).ok().filter(|uuid| !uuid.is_nil());
            spec.uuid = Some(uuid.ok_or_else(|| SpecProblem::Uuid(value.to_owned()))?);
            Ok("uuid")
        }
        "uncorrectable" => {
            flag("uncorrectable, without a value")?;
            spec.uncorrectable = true;
            Ok("uncorrectable")
        }
        "delay" => {
            spec.delay = Some(needs("delay=MICROSECONDS")?.parse()?);
            Ok("delay")
        }
        "error" => {
            let rules = needs("error=RULE, e.g. error=write/10")?;
            spec.errors = rules.split('+').map(str::parse).collect::<Result<_, _>>()?;
            Ok("error")
        }
        "size" => {
            let wanted = needs("size=SIZE")?.parse()?;
            let (size, _) = file_options(spec, "size")?;
            *size = Some(wanted);
            Ok("size")
        }
        "buffered" => {
            flag("buffered, without a value")?;
            let (_, buffered) = file_options(spec, "buffered")?;
            *buffered = true;
            Ok("buffered")
        }
        "hugepages" => {
            flag("hugepages, without a value")?;
            let kind = kind_name(&spec.backing);
            let Backing::Ram { huge_pages, .. } = &mut spec.backing else {
                return Err(SpecProblem::Misplaced { option: "hugepages", kind, only: "ram" });
            };
            *huge_pages = true;
            Ok("hugepages")
        }
        _ => Err(SpecProblem::UnknownOption(option.to_owned())),
    }
}

/// The option that only memory has: a power of two from 512 to [`MAX_PHYSICAL_BLOCK_BYTES`], in bytes.
fn set_physical_block_size(spec: &mut DeviceSpec, text: &str) -> Result<(), SpecProblem> {
    if !matches!(spec.backing, Backing::Ram { .. } | Backing::Null { .. }) {
        let (kind, only) = (kind_name(&spec.backing), "ram or null");
        return Err(SpecProblem::Misplaced { option: "pbs", kind, only });
    }
    let size: Option<ByteSize> = text.parse().ok();
    let bytes = size.and_then(|size| u32::try_from(size.0).ok());
    let bytes = bytes
        .filter(|bytes| bytes.is_power_of_two() && (512..=MAX_PHYSICAL_BLOCK_BYTES).contains(bytes))
        .ok_or_else(|| SpecProblem::PhysicalBlockSize(text.to_owned()))?;
    spec.physical_block_size = Some(bytes);
    Ok(())
}

/// The options that only files have; a bare path with one of them is a file.
fn file_options<'a>(
    spec: &'a mut DeviceSpec,
    option: &'static str,
) -> Result<(&'a mut Option<ByteSize>, &'a mut bool), SpecProblem> {
    if let Backing::Path { path } = &mut spec.backing {
        let path = std::mem::take(path);
        spec.backing = Backing::File { path, size: None, buffered: false };
    }
    let kind = kind_name(&spec.backing);
    match &mut spec.backing {
        Backing::File { size, buffered, .. } => Ok((size, buffered)),
        _ => Err(SpecProblem::Misplaced { option, kind, only: "file" }),
    }
}

fn kind_name(backing: &Backing) -> &'static str {
    match backing {
        Backing::Ram { .. } => "ram",
        Backing::Null { .. } => "null",
        Backing::File { .. } | Backing::Path { .. } => "file",
        Backing::Block { .. } => "block",
    }
}

/// A size known from the text alone must be whole blocks, at least one.
fn check_size(spec: &DeviceSpec) -> Result<(), SpecProblem> {
    let size = match spec.backing {
        Backing::Ram { size, .. }
        | Backing::Null { size }
        | Backing::File { size: Some(size), .. } => size,
        _ => return Ok(()),
    };
    let block_size = spec.block_size.unwrap_or(BlockSize::B512).bytes();
    if size.0 < u64::from(block_size) {
        return Err(SpecProblem::TooSmall(block_size));
    }
    if !size.0.is_multiple_of(u64::from(block_size)) {
        return Err(SpecProblem::PartialBlock(size, block_size));
    }
    Ok(())
}

impl fmt::Display for DeviceSpec {
    /// The canonical text, which parses back to the same device (if the path is UTF-8).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.backing)?;
        if let Some(block_size) = self.block_size {
            write!(f, ",bs={}", block_size.bytes())?;
        }
        if let Some(bytes) = self.physical_block_size {
            write!(f, ",pbs={bytes}")?;
        }
        if self.read_only {
            f.write_str(",readonly")?;
        }
        if self.shared {
            f.write_str(",shared")?;
        }
        if let Some(uuid) = self.uuid {
            write!(f, ",uuid={uuid}")?;
        }
        if self.uncorrectable {
            f.write_str(",uncorrectable")?;
        }
        if let Some(delay) = &self.delay {
            write!(f, ",delay={delay}")?;
        }
        for (index, rule) in self.errors.iter().enumerate() {
            write!(f, "{}{rule}", if index == 0 { ",error=" } else { "+" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escape =
            |path: &PathBuf| path.to_string_lossy().replace('\\', "\\\\").replace(',', "\\,");
        match self {
            Self::Ram { size, huge_pages } => {
                write!(f, "ram:{size}{}", if *huge_pages { ",hugepages" } else { "" })
            }
            Self::Null { size } => write!(f, "null:{size}"),
            Self::File { path, size, buffered } => {
                write!(f, "file:{}", escape(path))?;
                if let Some(size) = size {
                    write!(f, ",size={size}")?;
                }
                f.write_str(if *buffered { ",buffered" } else { "" })
            }
            Self::Block { path } => write!(f, "block:{}", escape(path)),
            Self::Path { path } => f.write_str(&escape(path)),
        }
    }
}
