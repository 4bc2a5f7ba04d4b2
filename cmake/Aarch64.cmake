# The toolchain file of the preset aarch64: Debian's cross compiler, and qemu to run what it makes.
# Debian keeps the libraries of a foreign architecture in folders of their own, so that nothing needs
# a root of its own: CMake finds them by the compiler's name for the architecture.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# The processor that has everything which this qemu knows.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -cpu max)
