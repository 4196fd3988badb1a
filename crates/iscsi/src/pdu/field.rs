//! Fields of a header at fixed offsets, and the macro that makes a struct of them.

use super::Bhs;

/// A field of a basic header segment.
pub(super) trait Field: Copy {
    /// Reads the field at an offset.
    fn get(bhs: &Bhs, at: usize) -> Self;
    /// Writes it.
    fn put(self, bhs: &mut Bhs, at: usize);
}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Field for $ty {
            #[inline(always)]
            fn get(bhs: &Bhs, at: usize) -> Self {
                Self::from_be_bytes(Field::get(bhs, at))
            }

            #[inline(always)]
            fn put(self, bhs: &mut Bhs, at: usize) {
                self.to_be_bytes().put(bhs, at);
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64);

impl<const N: usize> Field for [u8; N] {
    #[inline(always)]
    fn get(bhs: &Bhs, at: usize) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&bhs[at..at + N]);
        bytes
    }

    #[inline(always)]
    fn put(self, bhs: &mut Bhs, at: usize) {
        bhs[at..at + N].copy_from_slice(&self);
    }
}

/// The bit I of a request: bit 6 of the byte.
impl Field for bool {
    #[inline(always)]
    fn get(bhs: &Bhs, at: usize) -> Self {
        bhs[at] & super::flags::IMMEDIATE != 0
    }

    #[inline(always)]
    fn put(self, bhs: &mut Bhs, at: usize) {
        if self {
            bhs[at] |= super::flags::IMMEDIATE;
        }
    }
}

/// Makes a struct of a PDU's fields, with their offsets in the header.
macro_rules! pdu {
    (
        $(#[$doc:meta])*
        $name:ident = $opcode:ident {
            $( $(#[$field_doc:meta])* $field:ident: $ty:ty = $at:literal, )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_doc])* pub $field: $ty, )*
        }

        impl $name {
            /// The opcode of this PDU.
            pub const OPCODE: u8 = $crate::pdu::opcode::$opcode;

            /// Reads the fields; the opcode and the lengths were looked at before.
            #[inline]
            #[must_use]
            pub fn decode(bhs: &$crate::pdu::Bhs) -> Self {
                Self { $( $field: <$ty as $crate::pdu::field::Field>::get(bhs, $at), )* }
            }

            /// The header of this PDU with `data_len` bytes of data and no AHS.
            ///
            /// # Panics
            /// When the data have 16 MiB or more.
            #[inline]
            #[must_use]
            pub fn encode(&self, data_len: u32) -> $crate::pdu::Bhs {
                let mut bhs = [0; $crate::pdu::BHS_LEN];
                bhs[0] = Self::OPCODE;
                $( $crate::pdu::field::Field::put(self.$field, &mut bhs, $at); )*
                $crate::pdu::set_data_len(&mut bhs, data_len);
                bhs
            }
        }
    };
}

pub(super) use pdu;
