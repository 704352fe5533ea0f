package override

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// What the seed of this made invalid JSON of, or left standing twice.
func TestOverrideReplacesKeys(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ conf, over, want string }{
		"nothing":            {`{ "b" : 1, "a":2 }`, `{}`, `{ "b" : 1, "a":2 }`},
		"both empty":         {`{}`, `{}`, `{}`},
		"empty request":      {`{}`, `{"a":1}`, `{"a":1}`},
		"new":                {`{"b":1,"a":2}`, `{"d":3,"c":4}`, `{"b":1,"a":2,"d":3,"c":4}`},
		"in its place":       {`{"b":1,"a":2,"c":3}`, `{"a":9}`, `{"b":1,"a":9,"c":3}`},
		"other case":         {`{"logLevel":"info","x":1}`, `{"LOGLEVEL":"debug"}`, `{"LOGLEVEL":"debug","x":1}`},
		"twice in other":     {`{"a":1,"A":2,"b":3}`, `{"a":9}`, `{"a":9,"b":3}`},
		"Kelvin":             {`{"logToStderr":1,"k":1}`, "{\"\u212a\":2,\"logTo\u017ftderr\":3}", "{\"logTo\u017ftderr\":3,\"\u212a\":2}"},
		"escaped":            {`{"\u0061":1}`, `{"a":2}`, `{"a":2}`},
		"twice in override":  {`{"a":1}`, `{"a":2,"A":3}`, `{"A":3}`},
		"new twice":          {`{}`, `{"a":2,"b":1,"A":3}`, `{"b":1,"A":3}`},
		"shallow":            {`{"a":{"b":1,"c":2}}`, `{"a":{"b":3}}`, `{"a":{"b":3}}`},
		"null":               {`{"a":1}`, `{"a":null}`, `{"a":null}`},
		"as it is written":   {`{"n":9007199254740993,"f":1.0e2,"s":"\u003c","o":{"z":1, "a":[ 2 ]}}`, `{"x":1}`, `{"n":9007199254740993,"f":1.0e2,"s":"\u003c","o":{"z":1, "a":[ 2 ]},"x":1}`},
		"white space":        {"\n{\t\"a\" :\r\n 1 , \"b\": 2 }\n", `{"a":3}`, `{"a":3,"b":2}`},
		"duplicates left":    {`{"a":1,"a":2}`, `{"b":3}`, `{"a":1,"a":2,"b":3}`},
		"a brace in a value": {`{"a":"},{","b":1}`, `{"b":2}`, `{"a":"},{","b":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over, err := Parse([]byte(tt.over))
			if err != nil {
				t.Fatal(err)
			}
			got, err := over.Apply([]byte(tt.conf))
			if err != nil || string(got) != tt.want {
				t.Errorf("%s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

func TestOnlyObjectsAreParsed(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{``, ` `, `null`, `[]`, `"a"`, `1`, `{`, `{"a"}`, `{"a":1,}`, `{}{}`, `{"a":1}x`, "{\"a\":1}\x00", strings.Repeat("[", 20000)} {
		if _, err := Parse([]byte(odd)); err == nil {
			t.Errorf("%.20q is an object", odd)
		}
	}
}

// Apply loses nothing, and gives every reader of JSON in Go the
// override's values.
func FuzzApply(f *testing.F) {
	for _, s := range [][2]string{
		{`{"a":1,"A":2}`, `{"a":3}`},
		{"\n{\t\"a\" :\r\n 1 , \"b\": 2 }\n", `{}`},
		{`{"\u0061":{"b":[1,2]}}`, "{\"\u212a\":1}"},
		{`{"":1}`, `{"":2}`},
		{"{\"\xff\":1}", "{\"\xfe\":2}"},
		{`[]`, `{}`},
	} {
		f.Add([]byte(s[0]), []byte(s[1]))
	}
	f.Fuzz(func(t *testing.T, conf, override []byte) {
		over, err := Parse(override)
		if err != nil {
			t.Skip()
		}
		got, err := over.Apply(conf)
		var object map[string]json.RawMessage
		if isObject := json.Unmarshal(conf, &object) == nil && object != nil; isObject != (err == nil) {
			t.Fatalf("%q: %v", conf, err)
		}
		if err != nil {
			return
		}
		all, err := Parse(got)
		if err != nil {
			t.Fatalf("%q: %v", got, err)
		}
		before, err := Parse(conf)
		if err != nil {
			t.Fatal(err)
		}
		// Each of the override stands there once, and the rest as it was.
		var kept []member
		for _, m := range all {
			i := last(over, m)
			if i < 0 {
				kept = append(kept, m)
			} else if !bytes.Equal(m.value, over[i].value) {
				t.Errorf("%q: %s is %s, not %s", got, m.key, m.value, over[i].value)
			}
		}
		for _, m := range over {
			n := 0
			for _, o := range all {
				if o.is(m) {
					n++
				}
			}
			if n != 1 && len(over) > 0 {
				t.Errorf("%q: %s is there %d times", got, m.key, n)
			}
		}
		for _, m := range before {
			if last(over, m) >= 0 {
				continue
			}
			if len(kept) == 0 || !bytes.Equal(kept[0].key, m.key) || !bytes.Equal(kept[0].value, m.value) {
				t.Fatalf("%q: lost %s", got, m.key)
			}
			kept = kept[1:]
		}
		if len(kept) != 0 {
			t.Errorf("%q: has %s besides", got, kept[0].key)
		}
		again, err := over.Apply(got)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("again %q, %v; was %q", again, err, got)
		}
	})
}
