//! What a host does: track commands by identifiers with generations, bring a controller up
//! (Connect, properties, Identify, features), keep it alive, read its logs.
