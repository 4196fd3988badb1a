//! Attaching what guides attach: source addresses, hotplug, controllers.
