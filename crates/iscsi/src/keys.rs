//! The keys of logins and text negotiations (RFC 7143, section 13).

/// Makes the enum of keys.
macro_rules! keys {
    ($( $key:ident = $name:literal; )*) => {
        /// A key that this crate knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Key {
            $( #[doc = concat!("`", $name, "`.")] $key, )*
        }

        impl Key {
            /// All of them.
            pub const ALL: &[Self] = &[$( Self::$key, )*];

            /// By its name; upper and lower case differ (6.1).
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Some(match name { $( $name => Self::$key, )* _ => return None })
            }

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$key => $name, )* }
            }
        }
    };
}

keys! {
    AuthMethod = "AuthMethod";
    ChapA = "CHAP_A";
    ChapI = "CHAP_I";
    ChapC = "CHAP_C";
    ChapN = "CHAP_N";
    ChapR = "CHAP_R";
    HeaderDigest = "HeaderDigest";
    DataDigest = "DataDigest";
    MaxConnections = "MaxConnections";
    SendTargets = "SendTargets";
    TargetName = "TargetName";
    InitiatorName = "InitiatorName";
    TargetAlias = "TargetAlias";
    InitiatorAlias = "InitiatorAlias";
    TargetAddress = "TargetAddress";
    TargetPortalGroupTag = "TargetPortalGroupTag";
    InitialR2t = "InitialR2T";
    ImmediateData = "ImmediateData";
    MaxRecvDataSegmentLength = "MaxRecvDataSegmentLength";
    MaxBurstLength = "MaxBurstLength";
    FirstBurstLength = "FirstBurstLength";
    DefaultTime2Wait = "DefaultTime2Wait";
    DefaultTime2Retain = "DefaultTime2Retain";
    MaxOutstandingR2t = "MaxOutstandingR2T";
    DataPduInOrder = "DataPDUInOrder";
    DataSequenceInOrder = "DataSequenceInOrder";
    ErrorRecoveryLevel = "ErrorRecoveryLevel";
    SessionType = "SessionType";
    TaskReporting = "TaskReporting";
    IScsiProtocolLevel = "iSCSIProtocolLevel";
    IfMarker = "IFMarker";
    OfMarker = "OFMarker";
    IfMarkInt = "IFMarkInt";
    OfMarkInt = "OFMarkInt";
}

impl Key {
    /// Whether it means nothing in a discovery session (section 13: "Irrelevant when SessionType=Discovery").
    #[must_use]
    pub const fn needs_normal_session(self) -> bool {
        matches!(
            self,
            Self::MaxConnections
                | Self::InitialR2t
                | Self::ImmediateData
                | Self::MaxBurstLength
                | Self::FirstBurstLength
                | Self::MaxOutstandingR2t
                | Self::DataPduInOrder
                | Self::DataSequenceInOrder
                | Self::TaskReporting
        )
    }

    /// Its place in a set.
    const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// A set of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySet(u64);

impl KeySet {
    /// Adds a key; gives whether it is new.
    pub fn insert(&mut self, key: Key) -> bool {
        let new = !self.contains(key);
        self.0 |= key.bit();
        new
    }

    /// Whether a key is in it.
    #[must_use]
    pub const fn contains(self, key: Key) -> bool {
        self.0 & key.bit() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_name_and_a_bit_of_its_own() {
        let mut set = KeySet::default();
        for &key in Key::ALL {
            assert_eq!(Key::from_name(key.name()), Some(key));
            assert!(set.insert(key));
            assert!(!set.insert(key));
        }
        assert_eq!(Key::from_name("headerdigest"), None);
    }
}
