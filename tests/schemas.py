"""JSON schemas to hold answers to: of the kinds that public collections have (configurations, tool calls, events, documents, resources of
clusters), random ones, and hostile ones. All made here, from a seed. Python's standard library alone."""

WORDS = ["name", "age", "größe", "a b", "id", "x", "kind", "spec", "$value", "city", "e-mail", "created_at", "数量", "is_active"]
FORMATS = ["date", "date-time", "time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "duration"]


def closed(properties, required=None, **more):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required,
            "additionalProperties": False, **more}


def tool_call(draw):
    kinds = [{"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"enum": ["celsius", "fahrenheit"]},
             {"type": "array", "items": {"type": "string"}, "maxItems": 2}, {"type": ["string", "null"]}]
    arguments = closed({word: draw.choice(kinds) for word in draw.sample(WORDS, draw.randint(1, 4))})
    return closed({"name": {"const": draw.choice(["get_weather", "search", "run"])}, "arguments": arguments})


def configuration(draw):
    rule = closed({"level": {"enum": ["off", "warn", "error"]}, "options": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
                  required=["level"])
    return closed({"$schema": {"type": "string", "maxLength": 20}, "version": {"enum": [1, 2, "2.1"]},
                   "extends": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2}]},
                   "rules": {"type": "object", "additionalProperties": rule, "maxProperties": 2} if draw.random() < 0.3 else rule}, required=["version", "rules"])


def event(draw):
    return closed({"schema": {"type": "string", "pattern": "^iglu:[a-z]{2,5}/[a-z_]{1,8}/[0-9]-[0-9]-[0-9]$"},
                   "data": closed({"id": {"type": "string", "format": "uuid"}, "at": {"type": "string", "format": "date-time"},
                                   "amount": {"type": "number", "minimum": 0, "maximum": draw.choice([1, 9.5, 10000])},
                                   "currency": {"type": "string", "minLength": 3, "maxLength": 3}}, required=["id", "amount"])})


def resource(draw):
    container = closed({"name": {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,9}$"}, "image": {"type": "string", "maxLength": 30},
                        "ports": {"type": "array", "items": closed({"containerPort": {"type": "integer", "minimum": 1, "maximum": 65535}}),
                                  "maxItems": 2}}, required=["name", "image"])
    return {"$defs": {"container": container,
                      "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 9}}},
            **closed({"apiVersion": {"const": "v1"}, "kind": {"enum": ["Pod", "Job"]},
                      "metadata": closed({"name": {"type": "string", "maxLength": 12}}),
                      "spec": closed({"containers": {"type": "array", "items": {"$ref": "#/$defs/container"}, "minItems": 1,
                                                     "maxItems": draw.randint(1, 2)}})})}


def document(draw):
    block = {"anyOf": [closed({"type": {"const": "text"}, "text": {"type": "string", "maxLength": 20}}),
                       closed({"type": {"const": "image"}, "url": {"type": "string", "maxLength": 15}, "width": {"type": "integer", "minimum": 1, "maximum": 4096}}),
                       closed({"type": {"const": "list"}, "items": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3}})]}
    return closed({"title": {"type": "string", "minLength": 1, "maxLength": 20}, "blocks": {"type": "array", "items": block, "maxItems": 2},
                   "published": {"type": ["string", "null"], "format": "date"}}, required=["title", "blocks"])


def tree(draw):
    node = closed({"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/definitions/node"}, {"type": "null"}]}})
    return {"definitions": {"node": node}, "$ref": "#/definitions/node"}


def formats(draw):
    return closed({name: {"type": "string", "format": name} for name in draw.sample(FORMATS, 2)})


def numbers(draw):
    low = draw.randint(-500, 400)
    kinds = [{"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 900)}, {"type": "integer", "exclusiveMinimum": low},
             {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"type": "number", "minimum": -1.5, "maximum": 2.25},
             {"type": "integer", "multipleOf": draw.choice([2, 5, 10])}, {"type": "integer", "minimum": 0, "maximum": 0}]
    return closed({word: draw.choice(kinds) for word in draw.sample(WORDS, 3)})


def tuples(draw):
    return {"type": "array", "prefixItems": [{"type": "string", "maxLength": 8}, {"type": "integer"}, {"type": "boolean"}],
            "items": False, "minItems": 3, "maxItems": 3}


def merged(draw):
    return {"allOf": [{"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]},
                      {"type": "object", "properties": {"b": {"type": "integer", "minimum": 3}}, "required": ["b"]}]}


def nullable(draw):
    return closed({word: {"anyOf": [{"type": "null"}, draw.choice([{"type": "integer"}, {"enum": ["é", "\n", "\"", "\\"]}])]} for word in draw.sample(WORDS, 3)})


KINDS = [tool_call, configuration, event, resource, document, tree, formats, numbers, tuples, merged, nullable]


def random_schema(draw, depth=0):
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "length", "range"]
    kinds += ["object", "object", "array", "anyOf", "ref"] if depth < 3 else []
    match draw.choice(kinds):
        case "string": return {"type": "string", "maxLength": 12}
        case "enum": return {"enum": draw.sample(["a", "b\n\"", "é", 1, 2.5, None, True], 3)}
        case "const": return {"const": draw.choice(["x y", 7, [1, "a"], {"k": None}])}
        case "pattern": return {"type": "string", "pattern": draw.choice(["^[a-z]{2,4}$", "^\\d{4}-\\d{2}$", "^(yes|no)$", "(?=a)b", "^[^\\x00-\\x1f]{1,4}$"])}
        case "length": return {"type": "string", "minLength": 1, "maxLength": draw.choice([1, 5, 20])}
        case "range": return {"type": "integer", "minimum": draw.randint(-50, 0), "maximum": draw.randint(1, 500)}
        case "object":
            names = draw.sample(WORDS, draw.randint(0, 4))
            return {"type": "object", "properties": {name: random_schema(draw, depth + 1) for name in names},
                    "required": names[:draw.randint(0, len(names))], "additionalProperties": draw.choice([False, {"type": "integer"}])}
        case "array": return {"type": "array", "items": random_schema(draw, depth + 1), "minItems": draw.randint(0, 1), "maxItems": draw.randint(1, 3)}
        case "anyOf": return {"anyOf": [random_schema(draw, depth + 1), random_schema(draw, depth + 1)]}
        case "ref": return {"$ref": "#/$defs/node"}
        case kind: return {"type": kind}


def deep(levels):
    schema = {"type": "integer"}
    for _ in range(levels):
        schema = closed({"a": schema})
    return schema


def hostile(draw):
    return draw.choice([
        lambda: deep(draw.choice([20, 60, 100])),
        lambda: {"enum": [f"value {number}" for number in range(draw.choice([200, 3000]))]},
        lambda: {"type": "string", "pattern": "^(a|aa|aaa)*(b|bb)*(a?){30}a{30}$"},
        lambda: {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$", "maxLength": 40},
        lambda: {"type": "string", "pattern": "^.{1000,5000}$"},
        lambda: {"type": "string", "minLength": 100000},
        lambda: {"type": "string", "minLength": 9, "maxLength": 3},
        lambda: {"type": "integer", "minimum": 5, "maximum": 1},
        lambda: {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 2},
        lambda: {"$ref": "#/$defs/missing"},
        lambda: {"$ref": "https://example.com/schema.json"},
        lambda: {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        lambda: {"allOf": [{"type": "string"}, {"type": "integer"}]},
        lambda: {"not": {"type": "string"}},
        lambda: {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        lambda: {"type": "object", "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
        lambda: {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3},
        lambda: {"type": "array", "contains": {"const": 3}, "maxItems": 3},
        lambda: {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False, "maxProperties": 2},
        lambda: {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        lambda: {"type": "object", "propertyNames": {"pattern": "^a"}},
        lambda: {"type": "object", "minProperties": 2, "additionalProperties": {"type": "boolean"}},
        lambda: closed({f"p{number}": {"type": "boolean"} for number in range(draw.choice([30, 300]))}, required=[]),
        lambda: {"type": draw.choice(["whatever", 3, []])},
        lambda: {"type": "object", "properties": 3},
        lambda: {"properties": {"a\u0000b": {"type": "null"}}, "required": ["a\u0000b"], "type": "object", "additionalProperties": False},
        lambda: {"anyOf": []},
        lambda: {"enum": []},
        lambda: {"type": "string", "format": "no-such-format"},
        lambda: {"type": "string", "pattern": "(?<!a)b\\1["},
        lambda: {"type": "number", "multipleOf": 0},
        lambda: {"x-guidance": {"lenient": True, "coerce_one_of": True}, "oneOf": [{"type": "integer"}, {"type": "number"}]},
        lambda: True,
        lambda: {},
    ])()


def generated(draw, number):
    """The schema of this number: every second is of a public kind, every fourth random, every fourth hostile."""
    if number % 2 == 0:
        return KINDS[number // 2 % len(KINDS)](draw)
    if number % 4 == 1:
        node = closed({"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}})
        return random_schema(draw) | {"$defs": {"node": node}}
    return hostile(draw)
