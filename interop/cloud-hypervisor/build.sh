#!/bin/sh
# Builds the guest of step `cloud-hypervisor`: build.sh FILE. Its code is for 32 bits, in an ELF file for 64 bits, because
# cloud-hypervisor loads no other. It needs gcc and objcopy, and no header and no library.
set -eu
here=$(dirname "$0")
gcc -m32 -march=i486 -mno-sse -mno-mmx -mgeneral-regs-only -ffreestanding -nostdlib -static -fno-pic -no-pie -fno-stack-protector \
    -fcf-protection=none -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns -O1 -Wall -Wextra -Werror \
    -Wl,--build-id=none -Wl,-T,"$here/guest.ld" -Wl,-z,noexecstack -Wl,--no-warn-rwx-segments -Wl,-e,start \
    -o "$1.32" "$here/guest.c"
objcopy -I elf32-i386 -O elf64-x86-64 "$1.32" "$1"
rm "$1.32"
