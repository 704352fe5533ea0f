package netconf_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

// The differential test against libcni. What this package means by a list is what libcni
// means, apart from:
//
//   - a name may be absent, null or empty, but must be valid where there is one;
//   - a list without "plugins" is for Load and LoadFile;
//   - a cniVersion of null is none, except in a file of a list;
//   - keys of a list match in upper and lower case, except "name" and "plugins" in a file of a list;
//   - a capability that is not a boolean is not declared, instead of an error;
//   - a number that float64 cannot hold is kept, instead of an error;
//   - numbers are kept as written, and so are keys of the list.
//
// What plugins receive is compared in package delegate.

func TestParseLikeLibcni(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(1, 2))}
	accepted, rejected := 0, 0
	for range 4000 {
		conf := g.network()
		got, err := netconf.Parse([]byte(conf.data))
		want, wantErr := libcni.NetworkConfFromBytes([]byte(conf.libcni))
		if (err != nil) != (wantErr != nil || conf.reject) {
			t.Fatalf("Parse(%s): %v\nlibcni(%s): %v", conf.data, err, conf.libcni, wantErr)
		}
		if err != nil {
			rejected++
			continue
		}
		accepted++
		if got.Name() != "" && got.Name() != want.Name || got.Name() == "" && want.Name != "n" {
			t.Errorf("%s: name %q, libcni has %q", conf.data, got.Name(), want.Name)
		}
		if want.CNIVersion == "" {
			want.CNIVersion = "0.1.0"
		}
		nodetest.Equal(t, fmt.Sprintf("%s: version", conf.data), got.CNIVersion(), want.CNIVersion)
		if got.DisableCheck() != want.DisableCheck || got.DisableGC() != want.DisableGC {
			t.Errorf("%s: disable %v %v, libcni has %v %v", conf.data, got.DisableCheck(), got.DisableGC(), want.DisableCheck, want.DisableGC)
		}
		if len(got.Plugins()) != len(want.Plugins) {
			t.Fatalf("%s: %d plugins, libcni has %d", conf.data, len(got.Plugins()), len(want.Plugins))
		}
		for i, p := range got.Plugins() {
			nodetest.Equal(t, fmt.Sprintf("%s: type", conf.data), p.Type(), want.Plugins[i].Network.Type)
			var caps []string
			for name, declared := range want.Plugins[i].Network.Capabilities {
				if declared {
					caps = append(caps, name)
				}
			}
			slices.Sort(caps)
			if d := cmp.Diff(caps, p.Capabilities()); d != "" && conf.exact() {
				t.Errorf("%s: capabilities (-libcni +netconf):\n%s", conf.data, d)
			}
		}
	}
	if accepted < 1000 || rejected < 400 {
		t.Errorf("%d accepted and %d rejected: the generator has become one-sided", accepted, rejected)
	}
}

func TestLoadLikeLibcni(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range confDir {
		if strings.Contains(content, "not read") && !strings.HasPrefix(content, "{") || strings.Contains(name, "bad") || strings.Contains(name, "07-") || strings.Contains(name, "44-") {
			continue // libcni fails on the first bad file
		}
		nodetest.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	for _, name := range []string{"chain", "only", "inlined", "red", "lone"} {
		want, err := libcni.LoadNetworkConf(dir, name)
		if err != nil {
			t.Fatalf("%s: libcni: %v", name, err)
		}
		got, err := netconf.Load(os.DirFS(dir), name)
		nodetest.OK(t, err)
		var wantTypes []string
		for _, p := range want.Plugins {
			wantTypes = append(wantTypes, p.Network.Type)
		}
		if typesOf(got) != strings.Join(wantTypes, " ") {
			t.Errorf("%s is of %q, in libcni of %q", name, typesOf(got), wantTypes)
		}
	}
}

// generated is a random network configuration.
type generated struct {
	data   string // as this package reads it
	libcni string // with what libcni would fail on, and we do not, put right
	reject bool   // whether we fail where libcni does not
}

// exact reports whether libcni reads the same bytes.
func (g generated) exact() bool { return g.data == g.libcni }

// generator makes configurations, most of them good.
type generator struct{ *rand.Rand }

func (g generator) oneIn(n int) bool { return g.IntN(n) == 0 }

// pick returns one of good, now and then one of bad.
func (g generator) pick(good, bad []string) string {
	if len(bad) > 0 && g.oneIn(40) {
		return bad[g.IntN(len(bad))]
	}
	return good[g.IntN(len(good))]
}

func (g generator) network() generated {
	var ours, theirs []string
	reject := false
	both := func(key, value string) {
		ours = append(ours, fmt.Sprintf("%q:%s", key, value))
		theirs = append(theirs, fmt.Sprintf("%q:%s", key, value))
	}
	versions := []string{`"0.1.0"`, `"0.2.0"`, `"0.3.0"`, `"0.3.1"`, `"0.4.0"`, `"1.0.0"`, `"1.1.0"`}
	bad := []string{`null`, `7`, `true`, `{}`, `"x.y"`}

	switch g.IntN(20) {
	case 0: // absent
		theirs = append(theirs, `"name":"n"`)
	case 2: // as good as absent
		ours, theirs = append(ours, `"name":`+g.pick([]string{`""`, `null`}, nil)), append(theirs, `"name":"n"`)
	case 1:
		both("name", g.pick([]string{`"../n"`, `"a/b"`, `"_"`}, nil))
		reject = true
	default:
		both("name", g.pick([]string{`"n"`, `"a-b"`, `"N.1_x"`}, []string{`3`, `["n"]`}))
	}
	if !g.oneIn(5) {
		if version := g.pick(append(versions, `"2.0.0"`), append(bad, `""`)); version != `null` {
			both("cniVersion", version)
		} else {
			ours = append(ours, `"cniVersion":null`)
		}
	}
	if g.oneIn(3) {
		var list []string
		for range g.IntN(6) {
			list = append(list, g.pick(append(versions, `"1.2.0"`, `"9.9"`, `"1.0"`), append(bad, `"1.2.3.4"`, `""`)))
		}
		both("cniVersions", g.pick([]string{"[" + strings.Join(list, ",") + "]"}, []string{`null`, `"1.0.0"`, `{}`}))
	}
	for _, key := range []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		if g.oneIn(4) {
			both(key, g.pick([]string{`true`, `false`, `"true"`, `"FALSE"`, `"True"`}, []string{`null`, `0`, `"yes"`, `""`, `[]`}))
		}
	}
	if g.oneIn(3) {
		both("unknown", g.value())
	}
	if g.oneIn(15) {
		reject = true
	} else {
		var a, b []string
		for range 1 + g.IntN(3) {
			p, q := g.plugin()
			a, b = append(a, p), append(b, q)
		}
		value := g.pick([]string{""}, []string{`null`, `[]`, `{}`, `"bridge"`, `[null]`, `[7]`})
		if value == "" {
			ours = append(ours, `"plugins":[`+strings.Join(a, ",")+`]`)
			theirs = append(theirs, `"plugins":[`+strings.Join(b, ",")+`]`)
		} else {
			both("plugins", value)
		}
	}
	return generated{"{" + strings.Join(ours, ",") + "}", "{" + strings.Join(theirs, ",") + "}", reject}
}

// plugin returns a plugin, and what of it libcni can read.
func (g generator) plugin() (ours, theirs string) {
	keys := map[string][2]string{}
	both := func(key, value string) { keys[key] = [2]string{value, value} }
	both("type", g.pick([]string{`"bridge"`, `"portmap"`, `"tuning"`}, []string{`""`, `null`, `1`, `[]`}))
	if g.oneIn(20) {
		delete(keys, "type")
	}
	if g.oneIn(4) {
		both("name", g.pick([]string{`"own"`, `""`, `null`}, []string{`7`, `{}`}))
	}
	if g.oneIn(4) {
		both("cniVersion", g.pick([]string{`"0.2.0"`, `""`}, []string{`7`}))
	}
	if g.oneIn(3) {
		both("ipam", g.pick([]string{`{}`, `null`, `{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]]}`}, []string{`"dhcp"`, `{"type":5}`, `[]`}))
	}
	if g.oneIn(4) {
		both("dns", g.pick([]string{`{}`, `{"nameservers":["10.0.0.1"],"x":1}`}, []string{`"x"`, `{"domain":1}`}))
	}
	if g.oneIn(4) {
		both("prevResult", g.pick([]string{`{}`, `null`, `{"cniVersion":"1.0.0","ips":[]}`}, []string{`[]`, `"x"`}))
	}
	if g.oneIn(4) {
		both("runtimeConfig", g.pick([]string{`{"own":1}`, `{}`, `null`, `7`}, nil))
	}
	if g.oneIn(2) {
		caps := map[string]string{"mac": "true", "ips": "false", "portMappings": "true", "none": "true"}
		if g.oneIn(2) {
			delete(caps, "portMappings")
		}
		good := render(caps)
		keys["capabilities"] = [2]string{good, good}
		if g.oneIn(10) {
			caps["odd"] = g.pick([]string{`"true"`, `1`, `{}`}, nil)
			keys["capabilities"] = [2]string{render(caps), good}
		} else if g.oneIn(20) {
			keys["capabilities"] = [2]string{`"mac"`, `{}`}
		}
	}
	both("unknown", g.value())
	if g.oneIn(20) {
		keys["huge"] = [2]string{`1e999`, `1`}
	}
	a, b := map[string]string{}, map[string]string{}
	for key, value := range keys {
		a[key], b[key] = value[0], value[1]
	}
	return render(a), render(b)
}

// value returns any JSON value that libcni can read.
func (g generator) value() string {
	return g.pick([]string{`null`, `1.50`, `9007199254740993`, `-0`, `"<&>\u2028\ud800"`, `[[],{"b":[1,{"a":2}]}]`, `{"x":{"":1}}`}, nil)
}

// render writes an object.
func render(keys map[string]string) string {
	var parts []string
	for key, value := range keys {
		parts = append(parts, fmt.Sprintf("%q:%s", key, value))
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ",") + "}"
}
