package resident

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Whatever is said first, what is accepted is fit for paths, headers and logs.
func FuzzHello(f *testing.F) {
	for _, s := range []string{
		`{"version":1,"index":"10","name":"a","types":["a"]}`, `{"version":1,"index":"10","name":"a","types":["../a","\u0000"]}`,
		`{"version":1,"index":"10","name":"..","types":["a"],"network":{"cniVersion":"1.1.0","name":"x","plugins":[{"type":"a"}]}}`,
		"", "null", "[]", "{", "\x00",
	} {
		f.Add([]byte(s + "\n"))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, its := net.Pipe()
		go func() {
			_, _ = its.Write(data)
			_ = its.Close()
		}()
		defer func() { _ = ours.Close() }()
		_ = ours.SetDeadline(time.Now().Add(time.Minute))
		h, err := readHello(ours)
		if err != nil {
			return
		}
		i, err := h.info()
		if err != nil {
			return
		}
		if named, err := named(i.String()); err != nil || named.String() != i.String() {
			t.Errorf("%q is no name of a file: %v", i, err)
		}
		for _, typ := range i.Types {
			if filepath.Base(typ) != typ || typ == ".." || typ == "." || strings.ContainsAny(typ, "\x00\n\r") {
				t.Errorf("type %q", typ)
			}
		}
		if j, err := i.hello().info(); err != nil || j.String() != i.String() || len(j.Types) != len(i.Types) {
			t.Errorf("%+v became %+v, %v", i, j, err)
		}
	})
}

// A file's name is an index and a name, and nothing else.
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
