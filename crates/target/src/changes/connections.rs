//! What a command line says about the connections of a target, over what its configuration says.

use std::fmt::Debug;
use std::time::Duration;

use crate::changes::config::{TargetConfig, ZeroCopySend};
use crate::records::placement::PlacementPolicy;

/// Options of connections that were given; `None` and `false` leave what the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// [`TargetConfig::placement`].
    pub placement: Option<PlacementPolicy>,
    /// [`TargetConfig::busy_poll`].
    pub busy_poll: Option<Duration>,
    /// [`TargetConfig::socket_priority`].
    pub socket_priority: Option<u32>,
    /// [`TargetConfig::zero_copy`].
    pub zero_copy: Option<ZeroCopySend>,
    /// [`TargetConfig::zero_copy_bytes`].
    pub zero_copy_bytes: Option<u32>,
    /// [`TargetConfig::send_flags`].
    pub send_flags: bool,
    /// [`TargetConfig::quiesce_time`].
    pub quiesce_time: Option<Duration>,
    /// Connections follow the queues of the network device, where neither these options nor the configuration
    /// say otherwise: [`TargetConfig::follow_device_queues`].
    pub follows_device_queues: bool,
    /// I/O queues move from cores that are full to cores that have time, as by [`crate::Target::set_balancing`].
    pub balances: bool,
}

impl ConnectionOptions {
    /// Changes the configuration to what these options say. Returns the settings of the configuration that
    /// said something else before, each as `SETTING is X instead of Y`; a setting at its default has said
    /// nothing.
    pub fn apply(&self, config: &mut TargetConfig) -> Vec<String> {
        let default = TargetConfig::default();
        let mut overruled = Overruled::default();
        let option = self.placement;
        overruled.set("placement", &mut config.placement, option, default.placement);
        let option = self.socket_priority;
        overruled.set(
            "socket priority",
            &mut config.socket_priority,
            option,
            default.socket_priority,
        );
        let option = self.zero_copy;
        overruled.set("sending without a copy", &mut config.zero_copy, option, default.zero_copy);
        let (option, default) = (self.zero_copy_bytes, default.zero_copy_bytes);
        overruled.set("fewest bytes without a copy", &mut config.zero_copy_bytes, option, default);
        config.busy_poll = self.busy_poll.or(config.busy_poll);
        config.quiesce_time = self.quiesce_time.unwrap_or(config.quiesce_time);
        config.send_flags |= self.send_flags;
        if self.follows_device_queues {
            config.follow_device_queues();
            // An option may ask for what the profile takes for silence.
            config.placement = self.placement.unwrap_or(config.placement);
            config.socket_priority = self.socket_priority.unwrap_or(config.socket_priority);
        }
        overruled.0
    }
}

/// The settings of a configuration that options have changed.
#[derive(Default)]
struct Overruled(Vec<String>);

impl Overruled {
    /// Sets one setting, and notes whether the configuration had said something else.
    fn set<T: PartialEq + Debug>(
        &mut self,
        name: &str,
        setting: &mut T,
        option: Option<T>,
        default: T,
    ) {
        let Some(option) = option else { return };
        if *setting != default && *setting != option {
            self.0.push(format!("{name} is {option:?} instead of {setting:?}"));
        }
        *setting = option;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_were_not_given_leave_the_configuration() {
        let before = TargetConfig {
            placement: PlacementPolicy::Cpu,
            socket_priority: 3,
            zero_copy: ZeroCopySend::Auto,
            zero_copy_bytes: 65_536,
            send_flags: true,
            busy_poll: Some(Duration::from_micros(7)),
            ..TargetConfig::default()
        };
        let mut config = before.clone();
        assert_eq!(ConnectionOptions::default().apply(&mut config), Vec::<String>::new());
        assert_eq!(format!("{config:?}"), format!("{before:?}"));
    }

    #[test]
    fn options_win_and_what_they_overrule_is_named() {
        let mut config = TargetConfig {
            placement: PlacementPolicy::Cpu,
            socket_priority: 3,
            zero_copy: ZeroCopySend::Auto,
            ..TargetConfig::default()
        };
        let options = ConnectionOptions {
            placement: Some(PlacementPolicy::Mark),
            socket_priority: Some(3),
            zero_copy: Some(ZeroCopySend::Off),
            zero_copy_bytes: Some(4096),
            send_flags: true,
            quiesce_time: Some(Duration::from_secs(7)),
            busy_poll: Some(Duration::from_micros(9)),
            follows_device_queues: false,
            balances: false,
        };
        assert_eq!(
            options.apply(&mut config),
            ["placement is Mark instead of Cpu", "sending without a copy is Off instead of Auto"]
        );
        assert_eq!((config.placement, config.socket_priority), (PlacementPolicy::Mark, 3));
        assert_eq!((config.zero_copy, config.zero_copy_bytes), (ZeroCopySend::Off, 4096));
        assert_eq!((config.send_flags, config.busy_poll), (true, options.busy_poll));
    }

    #[test]
    fn a_profile_fills_what_nobody_has_said() {
        let profile = ConnectionOptions {
            follows_device_queues: true,
            busy_poll: Some(Duration::from_micros(7)),
            ..ConnectionOptions::default()
        };
        let mut config = TargetConfig::default();
        assert!(profile.apply(&mut config).is_empty());
        assert_eq!((config.placement, config.socket_priority), (PlacementPolicy::Napi, 1));
        assert_eq!(config.busy_poll, profile.busy_poll);
        // Defaults that were asked for are not filled.
        let asked = ConnectionOptions {
            placement: Some(PlacementPolicy::Balanced),
            socket_priority: Some(0),
            ..profile
        };
        let mut config = TargetConfig::default();
        assert!(asked.apply(&mut config).is_empty());
        assert_eq!((config.placement, config.socket_priority), (PlacementPolicy::Balanced, 0));
    }
}
