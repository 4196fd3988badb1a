//! The groups of RFC 7919, in which both ends compute a common secret; and the NULL group, without one.

use std::fmt;
use std::str::FromStr;

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd, Resize};
use zeroize::Zeroizing;

use crate::hash::Hash;
use crate::interchange::KeyError;
use crate::primes;
use crate::secret::SecretBytes;

/// A group in which a Diffie-Hellman exchange happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DhGroup {
    /// No exchange: whoever records the messages can try secrets on them.
    Null,
    /// ffdhe2048.
    Ffdhe2048,
    /// ffdhe3072.
    Ffdhe3072,
    /// ffdhe4096.
    Ffdhe4096,
    /// ffdhe6144.
    Ffdhe6144,
    /// ffdhe8192.
    Ffdhe8192,
}

/// A public value is not that of any honest peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's public value does not belong to the group")]
pub struct PublicValueError;

impl DhGroup {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// By its identifier on the wire.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Its identifier on the wire.
    #[must_use]
    pub fn id(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 1,
            Self::Ffdhe3072 => 2,
            Self::Ffdhe4096 => 3,
            Self::Ffdhe6144 => 4,
            Self::Ffdhe8192 => 5,
        }
    }

    /// Bytes of a public value.
    #[must_use]
    pub fn public_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    /// Bits of a secret exponent: at least twice the strength that RFC 7919 (appendix A) gives the group, rounded up
    /// to a multiple of 64.
    fn exponent_bits(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 320,
            Self::Ffdhe4096 | Self::Ffdhe6144 => 384,
            Self::Ffdhe8192 => 448,
        }
    }

    fn prime_text(self) -> Option<&'static str> {
        match self {
            Self::Null => None,
            Self::Ffdhe2048 => Some(primes::FFDHE2048),
            Self::Ffdhe3072 => Some(primes::FFDHE3072),
            Self::Ffdhe4096 => Some(primes::FFDHE4096),
            Self::Ffdhe6144 => Some(primes::FFDHE6144),
            Self::Ffdhe8192 => Some(primes::FFDHE8192),
        }
    }

    fn bits(self) -> u32 {
        u32::try_from(self.public_len() * 8).unwrap_or(u32::MAX)
    }

    /// The prime; `None` for the NULL group.
    fn prime(self) -> Option<BoxedUint> {
        self.prime_text().map(|text| {
            let prime = BoxedUint::from_str_radix_with_precision_vartime(text, 16, self.bits());
            prime.expect("the constants are hexadecimal")
        })
    }

    /// `base` to the power of a secret. The time depends on the group only. `None`: the NULL group.
    fn power(self, base: BoxedUint, exponent: &BoxedUint) -> Option<BoxedUint> {
        let prime = Odd::new(self.prime()?).into_option().expect("primes above 2 are odd");
        let params = BoxedMontyParams::new_vartime(prime);
        let base = BoxedMontyForm::new(base, &params);
        Some(base.pow_bounded_exp(exponent, self.exponent_bits()).retrieve())
    }

    /// Checks a peer's public value: 2 to p - 2, in as many bytes as p has. All of these have a large order, since p
    /// is a safe prime.
    fn check_public(self, value: &[u8]) -> Result<BoxedUint, PublicValueError> {
        let prime = self.prime().ok_or(PublicValueError)?;
        if value.len() != self.public_len() {
            return Err(PublicValueError);
        }
        let value = BoxedUint::from_be_slice(value, self.bits()).map_err(|_| PublicValueError)?;
        let one = BoxedUint::one_with_precision(self.bits());
        if value > one && value < prime.wrapping_sub(&one) {
            Ok(value)
        } else {
            Err(PublicValueError)
        }
    }
}

impl fmt::Display for DhGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        })
    }
}

impl FromStr for DhGroup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|group| group.to_string() == text).ok_or_else(|| {
            format!(
                "unknown group {text:?}: use null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192"
            )
        })
    }
}

/// One end's part of an exchange.
pub(crate) struct Exchange {
    group: DhGroup,
    exponent: Zeroizing<BoxedUint>,
    public: Vec<u8>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exchange({})", self.group)
    }
}

impl Exchange {
    /// A fresh secret, and its public value. Takes milliseconds.
    pub(crate) fn new(group: DhGroup) -> Result<Self, KeyError> {
        let len = (group.exponent_bits() / 8) as usize;
        let secret = SecretBytes::random(len)?;
        Ok(Self::with_secret(group, secret.expose()))
    }

    fn with_secret(group: DhGroup, secret: &[u8]) -> Self {
        let exponent = Zeroizing::new(
            BoxedUint::from_be_slice(secret, group.exponent_bits()).unwrap_or_default(),
        );
        let two = BoxedUint::from(2_u8).resize(group.bits().max(8));
        let public = group.power(two, &exponent).map(|public| public.to_be_bytes().into_vec());
        Self { group, exponent, public: public.unwrap_or_default() }
    }

    pub(crate) fn group(&self) -> DhGroup {
        self.group
    }

    /// What the peer gets; empty with the NULL group.
    pub(crate) fn public(&self) -> &[u8] {
        &self.public
    }

    /// The session key: the hash of the secret that both ends compute, with its leading zeroes. `None` with the NULL
    /// group. Takes milliseconds.
    pub(crate) fn session_key(
        &self,
        hash: Hash,
        peer: &[u8],
    ) -> Result<Option<SecretBytes>, PublicValueError> {
        if self.group == DhGroup::Null {
            return if peer.is_empty() { Ok(None) } else { Err(PublicValueError) };
        }
        let peer = self.group.check_public(peer)?;
        let shared = self.group.power(peer, &self.exponent).map(Zeroizing::new);
        let bytes = shared.map(|shared| Zeroizing::new(shared.to_be_bytes().into_vec()));
        Ok(bytes.map(|bytes| hash.digest(&bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [DhGroup; 5] = [
        DhGroup::Ffdhe2048,
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
    ];

    /// floor(2^bits e) as 32-bit digits, the least first: the series of 1/k!, with 64 bits to spare.
    fn scaled_e(bits: usize) -> Vec<u32> {
        let digits = bits / 32 + 4;
        let spare = bits + 64;
        let mut term = vec![0_u32; digits];
        term[spare / 32] = 1 << (spare % 32);
        let mut sum = term.clone();
        for k in 1_u64.. {
            let mut rest = 0;
            for digit in term.iter_mut().rev() {
                let value = rest << 32 | u64::from(*digit);
                *digit = u32::try_from(value / k).unwrap();
                rest = value % k;
            }
            if term.iter().all(|digit| *digit == 0) {
                break;
            }
            add(&mut sum, &term);
        }
        sum.remove(0);
        sum.remove(0);
        sum
    }

    fn add(sum: &mut [u32], other: &[u32]) {
        let mut carry = 0;
        for (index, digit) in sum.iter_mut().enumerate() {
            let value = u64::from(*digit) + u64::from(*other.get(index).unwrap_or(&0)) + carry;
            *digit = u32::try_from(value & 0xffff_ffff).unwrap();
            carry = value >> 32;
        }
    }

    #[test]
    fn the_primes_are_those_of_their_definition() {
        // One less: the -1 of the definition borrows from the middle.
        let offsets = [560_315, 2_625_350, 5_736_040, 15_705_019, 10_965_727];
        for (group, offset) in GROUPS.into_iter().zip(offsets) {
            let bits = group.public_len() * 8;
            let mut middle = scaled_e(bits - 130);
            add(&mut middle, &[offset]);
            // 64 ones, the middle, 64 ones.
            middle.truncate(bits / 32 - 4);
            let digits =
                middle.iter().rev().map(|digit| format!("{digit:08X}")).collect::<String>();
            let wanted = format!("{0}{digits}{0}", "F".repeat(16));
            assert_eq!(group.prime_text(), Some(wanted.as_str()), "{group}");
        }
    }

    #[test]
    fn both_ends_compute_the_same() {
        for group in GROUPS {
            let [one, two] = [(); 2].map(|()| Exchange::new(group).unwrap());
            assert_ne!(one.public(), two.public());
            assert_eq!(one.public().len(), group.public_len());
            let key = one.session_key(Hash::Sha384, two.public()).unwrap();
            assert_eq!(key, two.session_key(Hash::Sha384, one.public()).unwrap());
            assert_eq!(key.unwrap().expose().len(), 48);
        }
    }

    /// Computed by an independent program: SHA-256 of 2^x mod p and of (2^y)^x mod p, x and y being bytes 1, 2, 3...
    /// and 101, 102, 103... as long as the group's exponents.
    #[test]
    fn known_values() {
        let known = [
            (
                "53b37a098c5882b9f56495d787706d354ac8ebc273e680a7047c70228ce24ad3",
                "a85e4e22b45f65ac6f13b6023d09a5013f8fcd0d68682577dffa25e6be8e82eb",
            ),
            (
                "38915af78eca68d5d294448119985964195c8924442e6636acfe2e5a2cfa32bc",
                "6b24b35e1fe2410e9c60a2331c06cf0028601cfbef34a0a0cd956cb577d623d5",
            ),
            (
                "863b6f6eda7e7b9a65a1589bd51e601ce3ea81edc82888c30a13b2cd3ae90298",
                "47ea2d0eb8258582b4d67fa50f3a4e35d78d8458d9bd438c7da739cff0b5c679",
            ),
            (
                "e5399ad5c7e68ac67e5760de3eb7b14322a56fdaf1a3771922b707393e951e7f",
                "90e539455e59af26c0632f8b266f0b628f37d333283b95080cadc8bd5db19824",
            ),
            (
                "0ecefa35bd91aa41e336cbd6c082e484b8ec1743b382ac5c9978b4c67643fb3f",
                "95ad4285f3f926b6217da09f55f63b693097e3306d6a0e835bce88340b7c3eee",
            ),
        ];
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        for (group, (public, shared)) in GROUPS.into_iter().zip(known) {
            let len = u8::try_from(group.exponent_bits() / 8).unwrap();
            let [one, two] = [1, 101].map(|first| {
                let secret = (first..first + len).collect::<Vec<_>>();
                Exchange::with_secret(group, &secret)
            });
            assert_eq!(hex(Hash::Sha256.digest(one.public()).expose()), public, "{group}");
            let key = one.session_key(Hash::Sha256, two.public()).unwrap().unwrap();
            assert_eq!(hex(key.expose()), shared, "{group}");
        }
    }

    #[test]
    fn values_outside_the_group_are_refused() {
        let group = DhGroup::Ffdhe2048;
        let own = Exchange::new(group).unwrap();
        let prime = group.prime().unwrap();
        let less = |by: u8| {
            let by = BoxedUint::from(by).resize(group.bits());
            prime.wrapping_sub(&by).to_be_bytes().into_vec()
        };
        let small = |value: u8| {
            let mut bytes = vec![0; 256];
            bytes[255] = value;
            bytes
        };
        for bad in [
            small(0),
            small(1),
            less(0),
            less(1),
            vec![0xff; 256],
            vec![1; 255],
            vec![1; 257],
            vec![],
        ] {
            assert_eq!(own.session_key(Hash::Sha256, &bad), Err(PublicValueError));
        }
        for good in [small(2), less(2)] {
            assert!(own.session_key(Hash::Sha256, &good).is_ok());
        }
        let null = Exchange::new(DhGroup::Null).unwrap();
        assert!(null.public().is_empty());
        assert_eq!(null.session_key(Hash::Sha256, &[]), Ok(None));
        assert_eq!(null.session_key(Hash::Sha256, &[1]), Err(PublicValueError));
    }
}
