//! CRC32C by tables, eight bytes at a time, for any CPU.
//!
//! Kounavis and Berry, "A Systematic Approach to Building High Performance Software-Based CRC
//! Generators", 2005.

/// The Castagnoli polynomial 1EDC6F41h, bits reversed.
pub(super) const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `TABLES[k][b]` is the register after byte `b` and then `k` zero bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    let mut start = 0_u32;
    while byte < 256 {
        let mut register = start;
        let mut table = 0;
        while table < 8 {
            let mut bit = 0;
            while bit < 8 {
                register = (register >> 1) ^ (POLYNOMIAL * (register & 1));
                bit += 1;
            }
            tables[table][byte] = register;
            table += 1;
        }
        byte += 1;
        start += 1;
    }
    tables
}

/// The register after `data`.
pub(super) fn update(mut register: u32, data: &[u8]) -> u32 {
    let (blocks, rest) = data.as_chunks::<8>();
    for block in blocks {
        let [a, b, c, d] = register.to_le_bytes();
        let [e, f, g, h, i, j, k, l] = *block;
        let at = |table: usize, byte: u8| TABLES[table][usize::from(byte)];
        register = at(7, a ^ e) ^ at(6, b ^ f) ^ at(5, c ^ g) ^ at(4, d ^ h);
        register ^= at(3, i) ^ at(2, j) ^ at(1, k) ^ at(0, l);
    }
    for byte in rest {
        let [low, ..] = register.to_le_bytes();
        register = (register >> 8) ^ TABLES[0][usize::from(low ^ byte)];
    }
    register
}
