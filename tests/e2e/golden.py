"""The kit's *.expect.gguf for the scripts, read with the standard library alone."""
import array, math, struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def tensors(path):
    """{name: values} of the float32 and int32 tensors of a GGUF file."""
    data, place = open(path, "rb").read(), 4

    def take(form):
        nonlocal place
        values = struct.unpack_from("<" + form, data, place)
        place += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def text():
        nonlocal place
        length = take("Q")
        place += length
        return data[place - length:place].decode()

    def value(kind):
        if kind == 8: return text()
        if kind != 9: return take(SCALARS[kind])
        kind, count = take("I"), take("Q")
        return [value(kind) for _ in range(count)]

    assert data[:4] == b"GGUF"
    version, tensor_count, key_count = take("I"), take("Q"), take("Q")
    keys = {}
    for _ in range(key_count):
        name = text()
        keys[name] = value(take("I"))
    directory = []
    for _ in range(tensor_count):
        name, dimensions = text(), take("I")
        count = math.prod(take("Q") for _ in range(dimensions))
        directory.append((name, count, take("I"), take("Q")))
    alignment = keys.get("general.alignment", 32)
    start = (place + alignment - 1) // alignment * alignment
    forms = {0: "f", 26: "i"}
    return {name: array.array(forms[kind], data[start + offset:start + offset + 4 * count])
            for name, count, kind, offset in directory if kind in forms}


def floats(path):
    return array.array("f", open(path, "rb").read())


def relative_error(found, expected):
    """‖found − expected‖ / ‖expected‖"""
    assert len(found) == len(expected), (len(found), len(expected))
    difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(found, expected)))
    return difference / math.sqrt(sum(b * b for b in expected))
