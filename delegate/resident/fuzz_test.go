package resident

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// An accepted hello holds only names that are safe in paths and log lines.
func FuzzHello(f *testing.F) {
	for _, s := range []string{
		`{"version":3,"index":"10","name":"a","types":["a"]}`, `{"version":3,"index":"10","name":"a","types":["../a","\u0000"]}`,
		`{"version":3,"index":"10","name":"..","types":["a"],"network":{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"a"}]}}`,
		"", "null", "[]", "{", "\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var h hello
		if json.Unmarshal(data, &h) != nil || h.check() != nil {
			return
		}
		i := h.Info
		if named, err := named(i.String()); err != nil || named.String() != i.String() {
			t.Errorf("%q is not a file name: %v", i, err)
		}
		for _, typ := range i.Types {
			if filepath.Base(typ) != typ || typ == ".." || typ == "." || strings.ContainsAny(typ, "\x00\n\r") {
				t.Errorf("type %q", typ)
			}
		}
	})
}

// A file name is accepted only when it is exactly an index, a dash and a name.
func FuzzNamed(f *testing.F) {
	for _, s := range []string{"10-a", "1-a", "10-", "10-a b", "10-../x", "١٠-a", "10-a~"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, base string) {
		i, err := named(base)
		if err == nil && (i.String() != base || filepath.Base(base) != base) {
			t.Errorf("%q is %q", base, i)
		}
	})
}
