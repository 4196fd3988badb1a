//! A line of /proc/keys (proc_keys(5)).

/// A key that this process may know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its serial number.
    pub(super) serial: i32,
    /// Neither expired nor revoked.
    pub(super) is_alive: bool,
    /// Its type.
    pub(super) kind: String,
    /// Its description, without what its type adds in the listing.
    pub(super) description: String,
}

impl Entry {
    /// Reads a line: serial number, flags, references, time that is left, rights, user, group, type, description.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut word = || {
            let (word, after) = rest.trim_start().split_once(' ')?;
            rest = after;
            Some(word)
        };
        let serial = i32::from_str_radix(word()?, 16).ok()?;
        let flags = word()?;
        // A key that nobody has any more is listed until the kernel sweeps it away.
        if word()? == "0" {
            return None;
        }
        let time = word()?;
        let (_rights, _user, _group) = (word()?, word()?, word()?);
        let kind = word()?.to_owned();
        // R: revoked, D: dead, i: invalidated.
        let is_alive = time != "expd" && !flags.contains(['R', 'D', 'i']);
        let description = without_size(rest.trim_start()).to_owned();
        Some(Self { serial, is_alive, kind, description })
    }
}

/// A description without the length of the payload, or the number of links, that most types append.
fn without_size(description: &str) -> &str {
    match description.rsplit_once(": ") {
        Some((before, size))
            if size == "empty" || size.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            before
        }
        _ => description,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let read = |line: &str| {
            let Entry { serial, is_alive, kind, description } = Entry::parse(line).unwrap();
            (serial, is_alive, kind, description)
        };
        let is = |serial, is_alive, kind: &str, description: &str| {
            (serial, is_alive, kind.to_owned(), description.to_owned())
        };
        assert_eq!(
            read("24dd7f7d I--Q---     2 perm 1f3f0000     0 65534 keyring   _uid.0: empty"),
            is(0x24dd_7f7d, true, "keyring", "_uid.0")
        );
        assert_eq!(
            read(
                "0d6b54e0 I------     1  10m 3f010000     0     0 psk       NVMe1R01 nqn.h nqn.s abc=: 32"
            ),
            is(0x0d6b_54e0, true, "psk", "NVMe1R01 nqn.h nqn.s abc=")
        );
        assert_eq!(
            read("0d6b54e0 I--Q---     1 expd 3f010000  1000  1000 user      a: b: 5"),
            is(0x0d6b_54e0, false, "user", "a: b")
        );
        assert_eq!(
            read("0d6b54e0 IR-Q---     1 perm 3f010000     0     0 asymmetri x y: X509 [a]"),
            is(0x0d6b_54e0, false, "asymmetri", "x y: X509 [a]")
        );
        let unlinked = "24dd7f7d I------     0 perm 1f3f0000     0     0 psk       a: 32";
        for line in
            [unlinked, "", "24dd7f7d", "zz I--Q--- 2 perm 1f3f0000 0 65534 keyring _uid.0: empty"]
        {
            assert_eq!(Entry::parse(line), None, "{line}");
        }
    }
}
