package nad_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

var blue = nad.Ref{Namespace: "ns", Name: "blue"}

func defined(config string) nad.Definition { return nad.Definition{Ref: blue, Config: config} }

func files(contents map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, content := range contents {
		fsys[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return fsys
}

// object is the JSON of a definition with spec and more metadata.
func object(spec, metadata string) string {
	return `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":"blue","namespace":"ns"` + metadata + `}` + spec + `}`
}

func TestParse(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]nad.Definition{
		object(`,"spec":{"config":"{ \"type\": \"bridge\" }\n"}`, `,"uid":"u-1","resourceVersion":"42","generation":1,"managedFields":[{"a":{}}],"annotations":{"k8s.v1.cni.cncf.io/resourceName":"intel.com/vf","x":"y"}`): {
			Ref: blue, UID: "u-1", Version: "42", Config: "{ \"type\": \"bridge\" }\n", Resource: "intel.com/vf",
		},
		object("", ""):                        {Ref: blue},
		object(`,"spec":null`, ""):            {Ref: blue},
		object(`,"spec":{"config":null}`, ""): {Ref: blue},
		object(`,"spec":{"config":"not JSON, which is for Network to say"}`, `,"annotations":null`): {Ref: blue, Config: "not JSON, which is for Network to say"},
		`{"metadata":{"name":"blue","namespace":"ns"}}`:                                             {Ref: blue}, // an element of a list
	} {
		got, err := nad.Parse([]byte(data))
		nodetest.OK(t, err)
		nodetest.Equal(t, data, got, want)
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]wantError{
		"":                                      {kind: netconf.ErrDecode},
		"[]":                                    {kind: netconf.ErrDecode},
		"{}":                                    {kind: netconf.ErrInvalid, key: "namespace"},
		object(`,"spec":{"config":{}}`, ""):     {kind: netconf.ErrDecode, ref: "ns/blue", key: "spec.config", text: "an object, want a string"},
		object(`,"spec":"x"`, ""):               {kind: netconf.ErrDecode, ref: "ns/blue", key: "spec"},
		object(`,"spec":{},"spec":{"x":1}`, ""): {kind: netconf.ErrDecode, ref: "ns/blue", key: "spec", text: "twice"},
		object("", `,"annotations":{"a":1}`):    {kind: netconf.ErrDecode, ref: "ns/blue", key: "metadata.annotations.a"},
		object("", "") + "{}":                   {kind: netconf.ErrDecode},
		`{"metadata":{"name":"blue"}}`:          {kind: netconf.ErrInvalid, key: "namespace", text: "missing"},
		`{"metadata":{"namespace":"ns"}}`:       {kind: netconf.ErrInvalid, key: "name", text: "missing"},
		`{"metadata":{"namespace":"ns","name":"a/b"}}`:                     {kind: netconf.ErrInvalid, key: "name"},
		strings.Replace(object("", ""), "Network", "X", 1):                 {kind: netconf.ErrInvalid, ref: "ns/blue", key: "kind"},
		strings.Replace(object("", ""), "k8s.cni", "x", 1):                 {kind: netconf.ErrInvalid, ref: "ns/blue", key: "apiVersion"},
		object(`,"spec":{"config":"`+strings.Repeat(" ", 16<<20)+`"}`, ""): {kind: netconf.ErrInvalid, text: "3 MiB"},
	} {
		got, err := nad.Parse([]byte(data))
		nodetest.Equal(t, fmt.Sprintf("%.200s: got", data), got, nad.Definition{})
		want.check(t, err)
	}
}

// The network has the keys, numbers and strings of the definition as they were written.
func TestNetworkIsWhatTheDefinitionSays(t *testing.T) {
	t.Parallel()
	rules := nad.Rules{CNIVersion: "1.1.0", Own: []string{"multinet"}}
	for _, tt := range []struct{ name, config, want string }{
		{
			"a lone plugin",
			`{"cniVersion":"0.3.1","name":"blue","type":"bridge","vni":12345678901234567890,"f":1.0,"z":{"b":1e3,"a":"<&>\u2028"}}`,
			`{"cniVersion":"0.3.1","name":"blue","plugins":[{"cniVersion":"0.3.1","f":1.0,"name":"blue","type":"bridge","vni":12345678901234567890,"z":{"b":1e3,"a":"<&>\u2028"}}]}`,
		},
		{
			"a list",
			`{"cniVersion":"1.0.0","name":"blue","keep":1.50,"plugins":[{"type":"bridge"},{"type":"tuning","vni":12345678901234567890}]}`,
			`{"cniVersion":"1.0.0","keep":1.50,"name":"blue","plugins":[{"type":"bridge"},{"type":"tuning","vni":12345678901234567890}]}`,
		},
		{
			"no name and no version",
			`{"plugins":[{"type":"bridge","vni":12345678901234567890}]}`,
			`{"cniVersion":"1.1.0","name":"blue","plugins":[{"type":"bridge","vni":12345678901234567890}]}`,
		},
		{
			"an empty name of a lone plugin",
			`{"name":"","type":"bridge","vni":12345678901234567890}`,
			`{"cniVersion":"1.1.0","name":"blue","plugins":[{"name":"","type":"bridge","vni":12345678901234567890}]}`,
		},
		{"another name stays", `{"name":"Red_1","type":"x"}`, `{"cniVersion":"1.1.0","name":"Red_1","plugins":[{"name":"Red_1","type":"x"}]}`},
		{"several versions of a plugin mean nothing", `{"cniVersions":["0.4.0"],"type":"x"}`, `{"cniVersion":"1.1.0","name":"blue","plugins":[{"cniVersions":["0.4.0"],"type":"x"}]}`},
		{"a key twice with one value", `{"name":"blue","type":"x","Type":"x","name":"blue"}`, `{"cniVersion":"1.1.0","name":"blue","plugins":[{"Type":"x","name":"blue","type":"x"}]}`},
		{"args are objects, or null", `{"plugins":[{"type":"x","args":null},{"type":"y","args":{"cni":null}},{"type":"z","args":{"cni":{"k":1}}}]}`, `{"cniVersion":"1.1.0","name":"blue","plugins":[{"args":null,"type":"x"},{"args":{"cni":null},"type":"y"},{"args":{"cni":{"k":1}},"type":"z"}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, err := defined(tt.config).Network(rules)
			nodetest.OK(t, err)
			got, err := n.MarshalJSON()
			nodetest.OK(t, err)
			nodetest.Equal(t, "network", string(got), tt.want)
		})
	}
}

func TestDefinitionsWithoutConfigAreFilesOfTheNode(t *testing.T) {
	t.Parallel()
	confDir := files(map[string]string{
		"10-a.conflist": `{"name":"red","plugins":[{"type":"x"}]}`,
		"20-b.conf":     `{"name":"blue","type":"second"}`,
		"30-c.conflist": `{"name":"blue","plugins":[{"type":"from-a-file","vni":12345678901234567890}]}`, // lists are first
		"blue.conflist": `{"name":"other","plugins":[{"type":"misnamed"}]}`,
	})
	for _, config := range []string{"", " \n\t"} {
		n, err := defined(config).Network(nad.Rules{ConfDir: confDir, CNIVersion: "1.1.0"})
		if err != nil || n.Name() != "blue" || n.CNIVersion() != "1.1.0" || n.Plugins()[0].Type() != "from-a-file" {
			t.Errorf("%q: %v, %v", config, n, err)
		}
	}
	_, err := nad.Definition{Ref: nad.Ref{Namespace: "ns", Name: "green"}}.Network(nad.Rules{ConfDir: confDir})
	wantError{kind: netconf.ErrNotFound, ref: "ns/green", text: "spec.config: empty"}.check(t, err)
	_, err = defined("").Network(nad.Rules{})
	wantError{kind: nad.ErrForbidden, ref: "ns/blue", text: "namespaceIsolation"}.check(t, err)
	_, err = defined("").Network(nad.Rules{ConfDir: confDir, Own: []string{"from-a-file"}})
	wantError{kind: netconf.ErrInvalid, ref: "ns/blue", key: "plugins[0].type"}.check(t, err)
}

// A definition has the plugins that are written in it. Files of the node that are
// named by it, such as those of an auxiliary chain, are out of its reach.
func TestDefinitionsLoadNoPluginsFromDirectories(t *testing.T) {
	t.Parallel()
	confDir := files(map[string]string{"chain/10.conf": `{"type":"administrators"}`, "blue/10.conf": `{"type":"administrators"}`})
	for _, config := range []string{
		`{"name":"chain","loadOnlyInlinedPlugins":false,"plugins":[{"type":"x"}]}`,
		`{"loadOnlyInlinedPlugins":"false","plugins":[{"type":"x"}]}`,
		`{"name":"","plugins":[{"type":"x"}]}`,
	} {
		n, err := defined(config).Network(nad.Rules{ConfDir: confDir})
		if text, _ := n.MarshalJSON(); err != nil || strings.Contains(string(text), "cniVersion") || len(n.Plugins()) != 1 || n.Plugins()[0].Type() != "x" {
			t.Errorf("%s: %v, %v", config, n, err)
		}
	}
	for _, config := range []string{`{"name":"chain"}`, `{"name":"chain","loadOnlyInlinedPlugins":false}`} {
		_, err := defined(config).Network(nad.Rules{ConfDir: confDir})
		wantError{kind: netconf.ErrInvalid, ref: "ns/blue", key: "plugins"}.check(t, err)
	}
	_, err := defined("").Network(nad.Rules{ConfDir: confDir})
	wantError{kind: netconf.ErrNotFound, ref: "ns/blue"}.check(t, err)
}

// secret is in the configurations of the following tests. No error says it.
const secret = "s3cr3t"

func TestDefinitionsThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	decode, invalid := netconf.ErrDecode, netconf.ErrInvalid
	for _, tt := range []struct {
		name, config string
		want         wantError
	}{
		{"not JSON", `s3cr3t`, wantError{kind: decode}},
		{"a key twice", `{"type":"x","password":"s3cr3t","password":"s3cr3t2"}`, wantError{kind: decode, key: "password"}},
		{"too large", `{"type":"x","password":"` + strings.Repeat(secret, 1<<20/len(secret)) + `"}`, wantError{kind: invalid, text: "larger than 1 MiB"}},
		{"too large, and blank", strings.Repeat(" ", 1<<20+1), wantError{kind: invalid, text: "larger than 1 MiB"}},
		{"a plugin without a type", `{"plugins":[{"password":"s3cr3t"}]}`, wantError{kind: invalid, key: "plugins[0].type"}},
		{"a type that is a path", `{"type":"/bin/sh"}`, wantError{kind: invalid, key: "plugins[0].type", text: "path"}},
		{"our own type", `{"plugins":[{"type":"x"},{"type":"multinet"}]}`, wantError{kind: invalid, key: "plugins[1].type", text: `"multinet"`}},
		{"an IPAM type that is a path", `{"type":"x","ipam":{"type":"../sh"}}`, wantError{kind: invalid, key: "plugins[0].ipam.type", text: "path"}},
		{"an IPAM type in other letters", `{"type":"x","IPAM":{"Type":"../sh"}}`, wantError{kind: invalid, key: "plugins[0].ipam.type"}},
		{"an IPAM type beside another", `{"type":"x","ipam":{"type":"host-local","TYPE":"../sh"}}`, wantError{kind: decode, key: "ipam.TYPE"}},
		{"IPAM that is no object", `{"type":"x","ipam":"s3cr3t"}`, wantError{kind: decode, key: "ipam"}},
		{"args that are no object", `{"type":"x","args":"s3cr3t"}`, wantError{kind: invalid, key: "plugins[0].args"}},
		{"args.cni that is no object", `{"plugins":[{"type":"x"},{"type":"y","args":{"cni":["s3cr3t"]}}]}`, wantError{kind: invalid, key: "plugins[1].args.cni"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, err := defined(tt.config).Network(nad.Rules{CNIVersion: "1.1.0", Own: []string{"multinetd", "multinet"}})
			if !n.IsZero() {
				t.Errorf("got %v", n)
			}
			tt.want.ref = "ns/blue"
			tt.want.check(t, err)
			if strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "spec.config") {
				t.Errorf("the error quotes the configuration, or does not say where it is: %v", err)
			}
		})
	}
}

func TestTypesAreRestrictedToThoseAllowed(t *testing.T) {
	t.Parallel()
	rules := nad.Rules{Allowed: []string{"bridge", "host-local", "tuning"}}
	for config, key := range map[string]string{
		`{"type":"bridge","ipam":{"type":"host-local"}}`:  "",
		`{"type":"bridge","ipam":{}}`:                     "",
		`{"type":"host-device"}`:                          "plugins[0].type",
		`{"plugins":[{"type":"bridge"},{"type":"exec"}]}`: "plugins[1].type",
		`{"type":"bridge","ipam":{"type":"exec"}}`:        "plugins[0].ipam.type",
		`{"type":"bridge","Ipam":{"tYpe":"exec"}}`:        "plugins[0].ipam.type",
	} {
		n, err := defined(config).Network(rules)
		if key == "" {
			if err != nil || n.IsZero() {
				t.Errorf("%s: %v", config, err)
			}
			continue
		}
		wantError{kind: nad.ErrForbidden, ref: "ns/blue", key: key, text: "allowedTypes"}.check(t, err)
	}
}

// Networks of files are held to the same rules.
func TestRulesOfNetworksThatAreNoDefinitions(t *testing.T) {
	t.Parallel()
	rules := nad.Rules{Allowed: []string{"bridge", "own"}, Own: []string{"own"}}
	for config, want := range map[string]wantError{
		`{"name":"x","type":"bridge"}`:  {},
		`{"name":"x","type":"macvlan"}`: {kind: nad.ErrForbidden, key: "plugins[0].type"},
		`{"name":"x","type":"own"}`:     {kind: netconf.ErrInvalid, key: "plugins[0].type"},
	} {
		n, err := netconf.Parse([]byte(config))
		nodetest.OK(t, err)
		switch err := rules.Check(n); {
		case want.kind != nil:
			want.check(t, err)
		case err != nil:
			t.Errorf("%s: %v", config, err)
		}
	}
}

// A definition that somebody built by hand names no file.
func TestDefinitionsWithNamesThatAreNoneHaveNoNetwork(t *testing.T) {
	t.Parallel()
	nothing := opening(func(name string) error {
		t.Errorf("%s is opened", name)
		return fs.ErrNotExist
	})
	for _, r := range []nad.Ref{{}, {Namespace: "ns", Name: "../x"}, {Namespace: "../x", Name: "blue"}} {
		_, err := nad.Definition{Ref: r}.Network(nad.Rules{ConfDir: nothing})
		if err == nil {
			t.Errorf("%v has a network", r)
		}
		_, err = nad.Load(nothing, r)
		if err == nil {
			t.Errorf("%v is loaded", r)
		}
	}
}

// An opening file system has nothing but an error for each file.
type opening func(name string) error

func (f opening) Open(name string) (fs.File, error) { return nil, f(name) }

// mirrored returns the files of d, with their directory.
func mirrored(d nad.Definition) []nad.File {
	all := nad.Files(d)
	for i := range all {
		all[i].Name = path.Join(d.Namespace, all[i].Name)
	}
	return all
}

// write writes files of d, the first n of them or all, as a writer of mirrors does.
func write(t *testing.T, fsys fstest.MapFS, d nad.Definition, n int) {
	t.Helper()
	written := mirrored(d)
	for _, f := range written[:min(n, len(written))] {
		if delete(fsys, f.Name); f.Data != nil {
			fsys[f.Name] = &fstest.MapFile{Data: f.Data}
		}
	}
}

const all = 99 // files

var (
	plugin = nad.Definition{Ref: blue, UID: "u-1", Version: "1", Resource: "intel.com/vf", Config: "{ \"type\": \"x\",\n \"vni\": 12345678901234567890 }\n"}
	chain  = nad.Definition{Ref: blue, UID: "u-1", Version: "2", Config: `{"plugins":[{"type":"y","s":"<&>"}]}`}
)

func TestMirrorHasEachDefinitionAsItWas(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]nad.Definition{
		"a lone plugin":       plugin,
		"a list":              chain,
		"without Config":      {Ref: blue, UID: "u", Version: "3"},
		"Config that is none": {Ref: blue, UID: "u", Version: "3", Config: "{\xff"},
		"the longest name":    {Ref: nad.Ref{Namespace: "ns", Name: strings.Repeat("a", 246)}, Version: "4", Config: "{}"},
		"nothing is known":    {Ref: blue, Config: "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fsys := fstest.MapFS{}
			write(t, fsys, d, all)
			got, err := nad.Load(fsys, d.Ref)
			nodetest.OK(t, err)
			nodetest.Equal(t, "definition", got, d)
			ext := ".conf"
			if name == "a list" {
				ext = ".conflist"
			}
			if f := fsys[d.Namespace+"/"+d.Name+ext]; f == nil || string(f.Data) != d.Config {
				t.Errorf("files: %q", slices.Sorted(maps.Keys(fsys)))
			}
		})
	}
}

// Wherever a writer stops, a reader gets one of the two versions, whole, or is told to
// try again.
func TestMirrorNeverMixesTwoVersions(t *testing.T) {
	t.Parallel()
	edited := plugin
	edited.Version, edited.Config = "3", `{"type":"z"}`
	empty := nad.Definition{Ref: blue}
	for name, change := range map[string][2]nad.Definition{
		"created": {empty, plugin}, "a plugin becomes a list": {plugin, chain}, "a list becomes a plugin": {chain, plugin}, "edited": {plugin, edited},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := change[0], change[1]
			for n := range 4 {
				fsys := fstest.MapFS{}
				if before != empty {
					write(t, fsys, before, all)
				}
				write(t, fsys, after, n)
				got, err := nad.Load(fsys, blue)
				switch {
				case err == nil && (got == before || got == after):
				case before == empty && errors.Is(err, netconf.ErrNotFound):
				default:
					wantError{code: 11, ref: "ns/blue", text: "do not belong together"}.check(t, err)
				}
				if n == 3 && got != after {
					t.Errorf("in the end: %+v, %v", got, err)
				}
			}
		})
	}
	// Removed in the opposite order.
	fsys := fstest.MapFS{}
	write(t, fsys, plugin, all)
	delete(fsys, "ns/blue.conf")
	_, err := nad.Load(fsys, blue)
	wantError{kind: netconf.ErrNotFound, ref: "ns/blue"}.check(t, err)
}

// A Mirror writes what Load reads, and removes what it has written.
func TestMirrorWritesAndRemoves(t *testing.T) {
	t.Parallel()
	m := nad.Mirror{Dir: filepath.Join(t.TempDir(), "a", "mirror")}
	nodetest.OK(t, m.Remove(blue))
	nodetest.OK(t, errors.Join(m.Put(plugin), m.Put(chain), m.Put(chain)))
	got, err := nad.Load(os.DirFS(m.Dir), blue)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition", got, chain)
	person := filepath.Join(m.Dir, "ns", "red.conf")
	left := filepath.Join(m.Dir, "ns", ".tmp-1")
	nodetest.OK(t, errors.Join(os.WriteFile(person, []byte("{}"), 0o600), os.WriteFile(left, nil, 0o600)))
	nodetest.Equal(t, "written by a Mirror", m.Refs(), []nad.Ref{blue})
	nodetest.OK(t, errors.Join(m.Remove(blue), m.Remove(blue), m.Remove(nad.Ref{Namespace: "ns", Name: "red"})))
	files, err := filepath.Glob(filepath.Join(m.Dir, "*/*"))
	nodetest.OK(t, err)
	nodetest.Equal(t, "left", files, []string{person})
	nodetest.OK(t, os.Remove(person))
	nodetest.OK(t, errors.Join(m.Put(plugin), m.Remove(blue)))
	if _, err := os.Stat(filepath.Join(m.Dir, "ns")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a namespace without definitions: %v", err)
	}
	nodetest.OK(t, os.WriteFile(filepath.Join(m.Dir, "ns"), nil, 0o600)) // not a directory
	nodetest.Fails(t, m.Put(plugin), 5, "ns/blue")
	long := nad.Definition{Ref: nad.Ref{Namespace: "ns", Name: strings.Repeat("a", 247)}}
	nodetest.Is(t, m.Put(long), nad.ErrLongName)
	nodetest.OK(t, m.Remove(long.Ref))
	nodetest.Fails(t, m.Put(nad.Definition{Ref: nad.Ref{Namespace: "..", Name: "x"}}), 7, "")
}

func TestMirrorTakesWhatAPersonWrote(t *testing.T) {
	t.Parallel()
	fsys := files(map[string]string{"ns/blue.conflist": `{"plugins":[{"type":"x"}]}`, "ns/red.conf": `{"type":"y"}`, "ns/green.conf": "{}", "ns/green.conflist": "{}"})
	for name, want := range map[string]string{"blue": "x", "red": "y"} {
		d, err := nad.Load(fsys, nad.Ref{Namespace: "ns", Name: name})
		if err != nil || d.UID+d.Version+d.Resource != "" {
			t.Fatalf("%+v, %v", d, err)
		}
		if n, err := d.Network(nad.Rules{}); err != nil || n.Name() != name || n.Plugins()[0].Type() != want {
			t.Errorf("%v, %v", n, err)
		}
	}
	_, err := nad.Load(fsys, nad.Ref{Namespace: "ns", Name: "green"})
	wantError{kind: netconf.ErrInvalid, ref: "ns/green", text: "remove one"}.check(t, err)
}

// A definition that does not exist is an error, even if a file of the node or another
// namespace has the name. It differs from every other error, so that only it can let a
// caller look elsewhere.
func TestOnlyAMissingDefinitionIsNotFound(t *testing.T) {
	t.Parallel()
	fsys := files(map[string]string{
		"blue.conf": `{"name":"blue","type":"x"}`, "other/blue.conf": `{"type":"x"}`, "ns/red.conf": `{"name":"blue","type":"x"}`, "ns/blue/x": "",
		"ns/blue.json": "{}", "ns/blue.key": `{"configSHA256":"x"}`,
	})
	long := nad.Ref{Namespace: "ns", Name: strings.Repeat("a", 247)}
	for _, r := range []nad.Ref{blue, {Namespace: "none", Name: "blue"}, long} {
		_, err := nad.Load(fsys, r)
		wantError{kind: netconf.ErrNotFound, ref: r.String()}.check(t, err)
		nodetest.Is(t, err, fs.ErrNotExist)
	}
	if !nad.TooLong(long.Name) || nad.TooLong(long.Name[1:]) {
		t.Error("a file has a name of 255 bytes at most")
	}
	for name, tt := range map[string]struct {
		fsys fs.FS
		want wantError
	}{
		"a FIFO":               {fstest.MapFS{"ns/blue.conf": {Mode: fs.ModeNamedPipe}}, wantError{kind: netconf.ErrInvalid, text: "not a regular file"}},
		"more than 1 MiB":      {files(map[string]string{"ns/blue.conf": strings.Repeat(" ", 1<<20+1)}), wantError{kind: netconf.ErrInvalid, text: "1 MiB"}},
		"a damaged key":        {files(map[string]string{"ns/blue.conf": "{}", "ns/blue.key": "{"}), wantError{kind: netconf.ErrDecode, text: "ns/blue.key"}},
		"a key of wrong types": {files(map[string]string{"ns/blue.conf": "{}", "ns/blue.key": `{"uid":{}}`}), wantError{kind: netconf.ErrDecode, key: "uid"}},
		"a key of another":     {files(map[string]string{"ns/blue.conf": "{}", "ns/blue.key": `{}`}), wantError{code: 11, text: "changed by hand"}},
		"not readable":         {opening(func(string) error { return fs.ErrPermission }), wantError{kind: fs.ErrPermission, code: 5}},
		"no file system":       {nil, wantError{kind: netconf.ErrInvalid}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := nad.Load(tt.fsys, blue)
			tt.want.ref = "ns/blue"
			tt.want.check(t, err)
			if errors.Is(err, netconf.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("as if there were none: %v", err)
			}
		})
	}
}
