package netconf_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/containernetworking/cni/libcni"

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

// network returns a list.
func (g generator) network() string {
	versions := []string{`"0.1.0"`, `"0.2.0"`, `"0.3.0"`, `"0.3.1"`, `"0.4.0"`, `"1.0.0"`, `"1.1.0"`}
	bad := []string{`null`, `7`, `true`, `{}`, `"x.y"`, `""`}
	keys := map[string]string{"name": g.pick([]string{`"n"`, `"a-b"`, `"N.1_x"`}, []string{`3`, `["n"]`, `""`, `null`, `"../n"`, `"a/b"`, `"_"`})}
	if !g.oneIn(5) {
		keys["cniVersion"] = g.pick(append(versions, `"2.0.0"`), bad)
	}
	if g.oneIn(3) {
		var list []string
		for range g.IntN(6) {
			list = append(list, g.pick(append(versions, `"1.2.0"`, `"9.9"`, `"1.0"`), append(bad, `"1.2.3.4"`)))
		}
		keys["cniVersions"] = g.pick([]string{"[" + strings.Join(list, ",") + "]"}, []string{`null`, `"1.0.0"`, `{}`})
	}
	for _, key := range []string{"disableCheck", "disableGC", "loadOnlyInlinedPlugins"} {
		if g.oneIn(4) {
			keys[key] = g.pick([]string{`true`, `false`, `"true"`, `"FALSE"`, `"True"`}, []string{`null`, `0`, `"yes"`, `""`, `[]`})
		}
	}
	if g.oneIn(3) {
		keys["unknown"] = g.value()
	}
	var plugins []string
	for range 1 + g.IntN(3) {
		plugins = append(plugins, g.plugin())
	}
	keys["plugins"] = g.pick([]string{"[" + strings.Join(plugins, ",") + "]"}, []string{`null`, `[]`, `{}`, `"bridge"`, `[null]`, `[7]`})
	return render(keys)
}

func (g generator) plugin() string {
	keys := map[string]string{"type": g.pick([]string{`"bridge"`, `"portmap"`, `"tuning"`}, []string{`""`, `null`, `1`, `[]`}), "unknown": g.value()}
	if g.oneIn(20) {
		delete(keys, "type")
	}
	for _, key := range []struct {
		name      string
		good, bad []string
	}{
		{"name", []string{`"own"`, `""`, `null`}, []string{`7`, `{}`}},
		{"cniVersion", []string{`"0.2.0"`, `""`}, []string{`7`}},
		{"ipam", []string{`{}`, `null`, `{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]]}`}, []string{`"dhcp"`, `{"type":5}`, `[]`}},
		{"dns", []string{`{}`, `{"nameservers":["10.0.0.1"],"x":1}`}, []string{`"x"`, `{"domain":1}`}},
		{"prevResult", []string{`{}`, `null`, `{"cniVersion":"1.0.0","ips":[]}`}, []string{`[]`, `"x"`}},
		{"runtimeConfig", []string{`{"own":1}`, `{}`, `null`, `7`}, nil},
		{"capabilities", []string{`{"ips":false,"mac":true,"portMappings":true}`, `{"mac":true,"none":true}`}, []string{`"mac"`, `{"odd":"true"}`, `{"odd":1}`}},
		{"huge", []string{`1`}, []string{`1e999`}},
	} {
		if g.oneIn(4) {
			keys[key.name] = g.pick(key.good, key.bad)
		}
	}
	return render(keys)
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

// byLibcni reads a file as a container runtime does: with libcni, by the extension of its name.
func byLibcni(name string, text []byte) (*libcni.NetworkConfigList, error) {
	if filepath.Ext(name) == ".conflist" {
		list, err := libcni.NetworkConfFromBytes(text)
		if err == nil && len(list.Plugins) == 0 {
			err = os.ErrNotExist // there is no sub-directory
		}
		return list, err
	}
	one, err := libcni.ConfFromBytes(text) //nolint:staticcheck // runtimes call it for a .conf file
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(one) //nolint:staticcheck // likewise
}

// Words in our errors, for files that libcni reads and we do not, and the rows of PEERS.md that say
// why.
var stricter = map[string]string{
	"two values":              "a key with two values",
	"not UTF-8":               "bytes that are not UTF-8",
	`key "name"`:              "no name, or no CNI network name",
	"the name of an executab": "a path as a plugin's type",
	"not a version":           "a cniVersion that is none",
	"is not a version":        "a cniVersion that is none",
	"implemented":             "a cniVersion that is none",
	`key "cniVersion"`:        "a known key of a list in another spelling",
	`key "cniVersions`:        "a known key of a list in another spelling",
	`key "disable`:            "a known key of a list in another spelling",
	`key "loadOnlyInlined`:    "a known key of a list in another spelling",
	"a number that is too la": "a number that no float64 holds",
	"nested more deeply":      "more than 1 MiB or 1,000 levels",
	"larger than":             "more than 1 MiB or 1,000 levels",
}

// Words in errors of libcni for files that we read, and the rows.
var milder = map[string]string{
	"capabilities": "a capability that is not a boolean",
	"Capabilities": "a capability that is not a boolean",
}

// sameAsLibcni fails unless a file is the same network to a runtime and to us, or the difference
// has a row in PEERS.md.
func sameAsLibcni(t *testing.T, name, text string) (used bool) {
	t.Helper()
	want, theirs := byLibcni(name, []byte(text))
	var got netconf.Network
	var ours error
	for f, err := range netconf.Files(files(map[string]string{name: text})) {
		got, ours = f.Network, err
	}
	explained := func(err error, rows map[string]string) bool {
		for word := range rows {
			if strings.Contains(err.Error(), word) {
				return true
			}
		}
		return false
	}
	switch {
	case theirs != nil && ours != nil:
	case theirs != nil:
		if !explained(theirs, milder) {
			t.Errorf("%s: %s: we read it, libcni: %v", name, text, theirs)
		}
	case ours != nil:
		if !explained(ours, stricter) {
			t.Errorf("%s: %s: libcni reads it, we: %v", name, text, ours)
		}
	default:
		var types []string
		for _, p := range want.Plugins {
			types = append(types, p.Network.Type)
		}
		if otherSpelling(text, "cniVersion") { // which libcni does not read in a list
			want.CNIVersion = got.CNIVersion()
		}
		if got.DisableCheck() != want.DisableCheck || got.DisableGC() != want.DisableGC {
			t.Errorf("%s: disable %v %v, in libcni %v %v", text, got.DisableCheck(), got.DisableGC(), want.DisableCheck, want.DisableGC)
		}
		for i, p := range want.Plugins {
			var declared []string
			for _, name := range slices.Sorted(maps.Keys(p.Network.Capabilities)) {
				if p.Network.Capabilities[name] {
					declared = append(declared, name)
				}
			}
			nodetest.Equal(t, text+": capabilities", got.Plugins()[i].Capabilities(), declared)
		}
		if got.Name() != want.Name || typesOf(got) != strings.Join(types, " ") || got.CNIVersion() != cmp.Or(want.CNIVersion, "0.1.0") {
			t.Errorf("%s: %s: %q %s of %q, in libcni %q %s of %q", name, text, got.Name(), got.CNIVersion(), typesOf(got), want.Name, want.CNIVersion, types)
		}
		return true
	}
	return false
}

// otherSpelling reports whether a JSON object has key in another spelling only.
func otherSpelling(text, key string) bool {
	var keys map[string]json.RawMessage
	_ = json.Unmarshal([]byte(text), &keys)
	_, exact := keys[key]
	return !exact && slices.ContainsFunc(slices.Collect(maps.Keys(keys)), func(k string) bool { return strings.EqualFold(k, key) })
}

// file returns the name and the text of a file as people write them: now and then a list in .conf,
// a key in another spelling, or a key twice.
func (g generator) file() (name, text string) {
	text = g.network()
	if g.oneIn(2) {
		text = `{"name":"n",` + strings.TrimPrefix(g.plugin(), "{")
	}
	isList := strings.Contains(text, `"plugins"`)
	name = g.pick([]string{"10-a.conf", "10-a.json"}, nil)
	if isList != g.oneIn(5) {
		name = "10-a.conflist"
	}
	if g.oneIn(3) {
		key := g.pick([]string{`"type"`, `"name"`, `"cniVersion"`, `"plugins"`, `"capabilities"`, `"ipam"`}, nil)
		changed := strings.Map(func(r rune) rune {
			if g.oneIn(3) {
				return unicode.ToUpper(r)
			}
			return r
		}, key)
		text = strings.Replace(text, key, changed, 1)
	}
	if g.oneIn(4) {
		again := g.pick([]string{`"name":"n",`, `"name":"m",`, `"type":"bridge",`, `"Type":"bridge",`, `"cniVersion":null,`, `"cniVersions":["0.4.0"],`}, nil)
		text = "{" + again + strings.TrimPrefix(text, "{")
	}
	return name, text
}

func TestEachDifferenceHasItsRow(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("PEERS.md")
	nodetest.OK(t, err)
	for _, words := range []map[string]string{stricter, milder} {
		for word, row := range words {
			if !strings.Contains(string(page), "\n| "+row+" |") {
				t.Errorf("PEERS.md has no row %q, for %q", row, word)
			}
		}
	}
}

func TestAFileIsTheSameNetworkToLibcni(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(3, 4))}
	used := 0
	const all = 6000
	for range all {
		if name, text := g.file(); sameAsLibcni(t, name, text) {
			used++
		}
	}
	if used < all/5 || used > all*4/5 {
		t.Errorf("%d of %d files are used: the generator has become one-sided", used, all)
	}
}

// A directory has one network of a name to libcni, if it can read all files, and to us.
func TestANameIsTheSameNetworkToLibcni(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(5, 6))}
	found := 0
	for range 300 {
		dir := t.TempDir()
		for i := range 1 + g.IntN(4) {
			name := fmt.Sprintf("%d-x%s", g.IntN(9), g.pick([]string{".conf", ".json", ".conflist"}, nil))
			typ, network := fmt.Sprintf("t%d", i), g.pick([]string{"n", "m"}, nil)
			text := fmt.Sprintf(`{"name":%q,"type":%q}`, network, typ)
			if strings.HasSuffix(name, "list") {
				text = fmt.Sprintf(`{"name":%q,"plugins":[{"type":%q}]}`, network, typ)
			}
			nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		if g.oneIn(3) {
			nodetest.OK(t, os.Mkdir(filepath.Join(dir, "n"), 0o700))
			nodetest.OK(t, os.WriteFile(filepath.Join(dir, "n", "1.conf"), []byte(`{"type":"sub"}`), 0o600))
		}
		want, theirs := libcni.LoadNetworkConf(dir, "n")
		got, ours := netconf.Load(os.DirFS(dir), "n")
		if (theirs == nil) != (ours == nil) {
			t.Fatalf("%v, libcni: %v", ours, theirs)
		}
		if theirs == nil {
			found++
			var types []string
			for _, p := range want.Plugins {
				types = append(types, p.Network.Type)
			}
			nodetest.Equal(t, "types", typesOf(got), strings.Join(types, " "))
		}
	}
	if found < 100 {
		t.Errorf("only %d networks were found", found)
	}
}

func FuzzAFileIsTheSameNetworkToLibcni(f *testing.F) {
	g := generator{rand.New(rand.NewPCG(7, 8))}
	for range 50 {
		name, text := g.file()
		f.Add(name, text)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		if slices.Contains([]string{".conf", ".json", ".conflist"}, filepath.Ext(name)) {
			sameAsLibcni(t, "10-a"+filepath.Ext(name), text)
		}
	})
}
