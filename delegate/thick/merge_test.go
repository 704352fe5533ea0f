package thick

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
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
			over, err := members([]byte(tt.over))
			if err != nil {
				t.Fatal(err)
			}
			got, err := merge([]byte(tt.conf), over)
			if err != nil || string(got) != tt.want {
				t.Errorf("%s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

func TestOverrideAndConfigurationMustBeObjects(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{``, ` `, `null`, `[]`, `"a"`, `1`, `{`, `{"a"}`, `{"a":1,}`, `{}{}`, `{"a":1}x`, "{\"a\":1}\x00", strings.Repeat("[", 20000)} {
		if _, err := members([]byte(odd)); err == nil {
			t.Errorf("%.20q is an object", odd)
		}
		m := request("ADD", "c1")
		m.Config = []byte(odd)
		s := &Server{Commands: (&fake{}).commands(), Override: json.RawMessage(`{"a":1}`)}
		_, err := s.service().order(wire.PathCNI, &m, nil)
		refused(t, err, 6, "the configuration is not a JSON object")

		// The server's own: it does not begin.
		if odd == "" {
			continue
		}
		s = &Server{Commands: (&fake{}).commands(), Override: json.RawMessage(odd)}
		l := newInMemory()
		if err := s.Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "Override is not a JSON object") {
			t.Errorf("%.20q: Serve: %v", odd, err)
		}
		if _, err := l.Accept(); err == nil {
			t.Error("the listener is open")
		}
	}
}

// The override reaches the plugin.
func TestOverrideReachesThePlugin(t *testing.T) {
	t.Parallel()
	f := &fake{}
	s := &Server{Commands: f.commands(), Override: json.RawMessage(`{"binDir":"/host/bin","NAME":"other"}`)}
	m := request("ADD", "c1")
	o, err := s.service().order(wire.PathCNI, &m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(o.args.StdinData), `{"cniVersion":"1.1.0","NAME":"other","type":"multinet","binDir":"/host/bin"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if o.network != "other" {
		t.Errorf("network %q", o.network)
	}
}

// A merge loses nothing, and gives every reader of JSON in Go the
// override's values.
func FuzzMerge(f *testing.F) {
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
		over, err := members(override)
		if err != nil {
			t.Skip()
		}
		got, err := merge(conf, over)
		var object map[string]json.RawMessage
		if isObject := json.Unmarshal(conf, &object) == nil && object != nil; isObject != (err == nil) {
			t.Fatalf("%q: %v", conf, err)
		}
		if err != nil {
			return
		}
		all, err := members(got)
		if err != nil {
			t.Fatalf("%q: %v", got, err)
		}
		before, err := members(conf)
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
		again, err := merge(got, over)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("again %q, %v; was %q", again, err, got)
		}
	})
}
