"""The machine code of the sm90 kernels: what the tensor cores are asked for, and that nothing spills.

    sass_test.py CUOBJDUMP OBJECT...

Exits with 77 (skipped) where there is no cuobjdump, which reads machine code with nvdisasm's help.
"""

import collections
import os
import re
import shutil
import subprocess
import sys

SKIPPED = 77
FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
# Policy<element, head dim, keys of a block, ...> as C++ mangles it.
WORK = re.compile(r"Work" r"E(\d)E")
POLICY = re.compile(r"forwardINS\d+_6PolicyI(13__nv_bfloat16|6__half)Li(\d+)ELi(\d+)E")
# Shape, format, whether the left operand is in registers, whether the right one lies along N.
PRODUCT = re.compile(r"\bHGMMA\.(64x\d+x16)\.F32(\.BF16)? R\d+, (R\d+, )?gdesc\[UR\d+\](\.tnspB)?(?=[, ])")
ANY_PRODUCT = re.compile(r"\b[A-Z]?GMMA\.[\w.]*|\bHMMA[\w.]*")
LOCAL = re.compile(r"\b(LDL|STL)\b")
# Kernels that read the thread's number in each step were 2.5 % slower than those that do not.
THREAD = re.compile(r"\bS2R R\d+, SR_TID")
MOST_THREAD_READS = 4
REGISTERS = ("USETMAXREG.TRY_ALLOC.CTAPOOL", "USETMAXREG.DEALLOC.CTAPOOL")


def kernels(text):
    """(name, code) of each kernel in a dump."""
    parts = FUNCTION.split(text)
    return [(name, code) for name, code in zip(parts[1::2], parts[2::2]) if POLICY.search(name)]


def described(product):
    shape, from_registers, along_n = product
    return f"{shape}, left operand in {'registers' if from_registers else 'shared memory'}, {'values' if along_n else 'keys'}"


def faults(name, code):
    """What is wrong with a kernel, one line each."""
    element, head_dim, keys = POLICY.search(name).groups()
    head_dim, keys = int(head_dim), int(keys)
    suffix = ".BF16" if "bfloat16" in element else ""
    # Queries move to registers up to head dim 128; weights are always there.
    scores, values = f"64x{keys}x16", f"64x{head_dim}x16"
    asked = {(scores, head_dim <= 128, False): head_dim // 16, (values, True, True): keys // 16}
    counts = {}
    for shape, kind, from_registers, along_n in PRODUCT.findall(code):
        if kind != suffix:
            yield f"a product of another format: {shape}.F32{kind}"
        product = (shape, bool(from_registers), bool(along_n))
        counts[product] = counts.get(product, 0) + 1
    if len(ANY_PRODUCT.findall(code)) != sum(counts.values()):
        yield f"products of another kind: {sorted(set(ANY_PRODUCT.findall(code)))}"
    for product in counts.keys() - asked.keys():
        yield f"products that nobody asked for: {described(product)}"
    for product, count in asked.items():
        if counts.get(product, 0) < count:
            yield f"{counts.get(product, 0)} products of {described(product)}, at least {count} make a step"
    if LOCAL.search(code):
        yield f"{len(LOCAL.findall(code))} accesses to local memory"
    if len(THREAD.findall(code)) > MOST_THREAD_READS:
        yield f"{len(THREAD.findall(code))} reads of the thread's number: in a register it is read once"
    for instruction in REGISTERS:
        if instruction not in code:
            yield f"{instruction} is missing"


def check_the_check():
    name = "_ZN1forwardINS2_6PolicyI13__nv_bfloat16Li64ELi32ELb1EEEEEv"
    good = ("HGMMA.64x32x16.F32.BF16 R24, R4, gdesc[UR8], R24 ;\n" * 4 +
            "HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR8].tnspB, R24, gsb0 ;\n" * 2 + "\n".join(REGISTERS))
    assert kernels(f"  Function : other\nNOP\n  Function : {name}\n{good}") == [(name, "\n" + good)]
    assert list(faults(name, good)) == []
    wide = name.replace("Li64E", "Li256E")
    shared = (good.replace("R24, R4, gdesc", "R24, gdesc").replace("64x64", "64x256") +
              "\nHGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24 ;" * 12)
    assert list(faults(wide, shared)) == []
    assert list(faults(wide, shared.replace("R24, gdesc", "R24, R4, gdesc", 1)))
    for bad in (good.replace("R24, R4, gdesc", "R24, gdesc", 1), good.replace(".tnspB", "", 1), good.replace("F32.BF16", "F32", 1), good.replace("64x32", "64x16", 1),
                good + "\nLDL.64 R2, [R1] ;", good + "\nHMMA.16816.F32 R2 ;",
                good + "\nS2R R0, SR_TID.X ;" * (MOST_THREAD_READS + 1), good.replace(REGISTERS[0], "")):
        assert list(faults(name, bad)), bad


def main(cuobjdump, objects):
    check_the_check()
    if shutil.which(cuobjdump) is None:
        print("skipped: no cuobjdump beside nvcc or on the PATH")
        return SKIPPED
    folder = os.path.dirname(cuobjdump)
    environment = dict(os.environ, PATH=os.pathsep.join([folder, os.environ.get("PATH", "")]))
    found = []
    works = collections.Counter()  # of kernels, by Policy's last parameter
    for path in objects:
        dump = subprocess.run([cuobjdump, "-sass", path], capture_output=True, text=True, check=False,
                              env=environment)
        if dump.returncode != 0:
            print(f"skipped: cuobjdump: {(dump.stderr or dump.stdout).strip()}")
            return SKIPPED
        for name, code in kernels(dump.stdout):
            works[WORK.search(name)[1]] += 1
            found += [f"{os.path.basename(path)}: {fault}" for fault in faults(name, code)]
    print("\n".join(found) or f"{works.total()} kernels are as expected")
    # Each has a kernel, and its twin for samples of different lengths; some have one that joins parts.
    if not (works["0"] == works["1"] == len(objects) > works["2"] > 0):
        print(f"{works} in {len(objects)} objects")
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
