//! The macro that declares a structure as it is on the wire, with its size checked.

/// Declares a `repr(C)` structure without padding whose size must be the given one. All of them
/// can be read from and written to bytes, and are zero by default.
macro_rules! wire {
    (
        $(#[$doc:meta])*
        pub struct $name:ident[$size:literal] {
            $( $(#[$field_doc:meta])* $field_vis:vis $field:ident: $field_type:ty, )*
        }
    ) => {
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::Immutable,
            zerocopy::KnownLayout,
            zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $( $(#[$field_doc])* $field_vis $field: $field_type, )*
        }

        const _: () = assert!(size_of::<$name>() == $size);

        impl $name {
            /// Size on the wire in bytes.
            pub const LEN: usize = $size;
        }

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}
pub(crate) use wire;
