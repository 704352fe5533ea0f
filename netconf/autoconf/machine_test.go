package autoconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

const (
	calico  = `{"cniVersion":"1.0.0","name":"calico","plugins":[{"type":"calico","capabilities":{"portMappings":true}}]}`
	flannel = `{"cniVersion":"0.3.1","name":"flannel","type":"flannel"}`
)

// tree makes a file system of names and contents.
func tree(files ...string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		fsys[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return fsys
}

// finding returns a Manager for tests of files.
func finding(primary string, accept func(netconf.File) bool) *Manager {
	return &Manager{Dir: "/net.d", Output: "/net.d/00-multinet", Template: plugin(`{"type":"multinet"}`), Primary: primary, Accept: accept}
}

// summary says what was found: the primary network's file, and each file that
// was skipped with a word of why.
func summary(f found) string {
	s := f.primary.Name
	for _, skipped := range f.skipped {
		s += " -" + skipped.name
	}
	if f.err != nil {
		s += " !" + f.err.Error()
	}
	return strings.TrimSpace(s)
}

// The first valid network in the order of runtimes, of the form that its extension says,
// without what is ours.
func TestFirstValidNetworkIsPrimary(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		fsys fstest.MapFS
		want string
	}{
		{"by name", tree("20-b.conflist", calico, "10-a.conf", flannel), "10-a.conf"},
		{"put aside", tree("05-a.cilium_bak", flannel, "06-a.conf_bak", flannel, "07-a.conflist.tmp-1", flannel, "08.tmp-x.conf", flannel), ""},
		{"the bad are passed over", tree("10-a.conf", "{", "20-b.conf", flannel, "30-c.conf", "{"), "20-b.conf -10-a.conf"},
		{"none", tree(), ""},
		{"own file", tree("00-multinet.conflist", calico, "10-a.conf", flannel), "10-a.conf"},
		{"own file, torn", tree("00-multinet.conflist", "{", "10-a.conf", flannel), "10-a.conf"},
		{"own type", tree("05-x.conf", `{"name":"x","type":"multinet"}`, "10-a.conf", flannel), "10-a.conf -05-x.conf"},
		{"own type in a list", tree("05-x.conflist", `{"name":"x","plugins":[{"type":"bridge"},{"type":"multinet"}]}`), "-05-x.conflist"},
		{"own type in a delegate", tree("05-x.conf", `{"name":"x","type":"multus","delegates":[{"name":"y","plugins":[{"type":"multinet"}]}]}`), "-05-x.conf"},
		{"own type in flannel's delegate", tree("05-x.conf", `{"name":"x","type":"flannel","delegate":{"type":"multinet"}}`), "-05-x.conf"},
		{"own type, escaped", tree("05-x.conf", `{"name":"x","type":"multus","delegates":[{"ty\u0070e":"mult\u0069net"}]}`), "-05-x.conf"},
		{"own type, in capitals and beside another", tree("05-x.conf", `{"name":"x","type":"a","TYPE":"multinet"}`), "-05-x.conf"},
		{"own type in the sub-directory", tree("05-x.conflist", `{"name":"x","plugins":[{"type":"a"}]}`, "x/1.conf", `{"type":"multinet"}`), "-05-x.conflist"},
		{"own file by reference, in a directory of another name", tree("05-x.conf", `{"name":"x","type":"multus","clusterNetwork":"/host/link/00-multinet.conflist"}`), "-05-x.conf"},
		{"a type of a similar name", tree("05-x.conf", `{"name":"x","type":"multinet2"}`), "05-x.conf"},
		{"sub-directory", tree("05-x.conflist", `{"cniVersion":"1.1.0","name":"x"}`, "x/1.conf", `{"type":"a"}`), "05-x.conflist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := finding("", nil).find(tt.fsys)
			if got := summary(f); got != tt.want {
				t.Errorf("found %q, want %q", got, tt.want)
			}
			if again := finding("", nil).find(tt.fsys); summary(again) != summary(f) || !again.primary.Network.Equal(f.primary.Network) {
				t.Errorf("another time %q", summary(again))
			}
		})
	}
}

// A fixed file is the only one, and is held to the same.
func TestFixedFileIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	fsys := tree("10-a.conf", flannel, "20-b.conflist", calico, "30-c.conf", "{", "40-d.conf", `{"name":"x","type":"multinet"}`,
		"bare", flannel, "00-multinet.conflist", flannel, "dir.conf/x", "", "50-e.conf", `{"type":"unnamed"}`)
	for fixed, want := range map[string]string{
		"20-b.conflist":        "20-b.conflist",
		"30-c.conf":            "-30-c.conf",
		"40-d.conf":            "-40-d.conf",
		"bare":                 "bare",
		"absent":               "-absent",
		"00-multinet.conflist": "",
		"dir.conf":             "-dir.conf",
		"50-e.conf":            "-50-e.conf",
	} {
		f := finding(fixed, nil).find(fsys)
		if got := summary(f); got != want {
			t.Errorf("fixed %s: found %q, want %q", fixed, got, want)
		}
		for _, err := range f.errs() {
			if !strings.Contains(err.Error(), strconv.Quote(fixed)) {
				t.Errorf("fixed %s: the error does not name the file: %v", fixed, err)
			}
		}
	}
}

func TestAccept(t *testing.T) {
	t.Parallel()
	var asked []string
	f := finding("", func(f netconf.File) bool {
		asked = append(asked, f.Name+" "+f.Network.Name())
		return f.Network.Name() == "calico"
	})
	fsys := tree("00-multinet.conflist", flannel, "05-bad.conf", "", "10-a.conf", flannel, "20-b.conflist", calico, "30-c.conflist", calico)
	if got := summary(f.find(fsys)); got != "20-b.conflist -05-bad.conf -10-a.conf" {
		t.Errorf("found %q", got)
	}
	nodetest.Equal(t, "got", asked, []string{"10-a.conf flannel", "20-b.conflist calico"})
}

// What cannot be used is passed over with the reason, which names the file and tells no
// secret.
func TestSkippedFiles(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]error{
		"":                               netconf.ErrDecode,
		calico[:60]:                      netconf.ErrDecode,
		`{"type":"a"}`:                   netconf.ErrInvalid,
		`{"name":"x","type":"../a"}`:     netconf.ErrInvalid,
		`{"name":"x","type":"multinet"}`: errOwn,
		`{"name":"x","type":"a","ipam":"hunter2"}`: netconf.ErrDecode,
		`{"name":"x","type":"a","k":"hunter2}`:     netconf.ErrDecode,
		`{"name":"x","plugins":"hunter2"}`:         netconf.ErrInvalid,
		`{"name":"x","plugins":[{"type":"a"}]}`:    netconf.ErrInvalid,
	} {
		f := finding("", nil).find(tree("10-a\n\x1b[2J.conf", content, "20-b.conf", flannel, "15-dir.conf/x", flannel))
		if f.primary.Name != "20-b.conf" || len(f.skipped) != 1 {
			t.Errorf("%s: found %q", content, summary(f))
			continue
		}
		err := f.skipped[0].err
		if text := err.Error(); !errors.Is(err, want) || !strings.Contains(text, `"10-a\n\x1b[2J.conf"`) || strings.Contains(text, "hunter2") {
			t.Errorf("%s: %v, want %v", content, err, want)
		}
	}
	if f := (&Manager{}).find(os.DirFS("/no/such/directory")); !errors.Is(f.err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", f)
	}
}

// template is the plugin object of tests.
var template = plugin(`{"type":"multinet","name":"meta","cniDir":"/var/lib/cni/multinet","big":12345678901234567890.10}`)

func plugin(s string) netconf.Plugin { return must(netconf.ParsePlugin([]byte(s))) }

func primary(s string) netconf.File {
	return netconf.File{Name: "10-p.conflist", Network: must(netconf.Parse([]byte(s)))}
}

// published is what is published.
func published(t *testing.T, template netconf.Plugin, p netconf.File, path string) document {
	t.Helper()
	doc, err := newDocument(template, p, path)
	nodetest.OK(t, err)
	oracle(t, doc)
	return doc
}

// oracle has libcni read what is published, as runtimes do.
func oracle(t *testing.T, doc document) {
	t.Helper()
	if _, err := libcni.ConfListFromBytes(doc.data); err != nil {
		t.Errorf("libcni: %v: %s", err, doc.data)
	}
}

// What is published is a list, and every key of the template survives. The name is the
// template's, or the primary network's of now.
func TestRender(t *testing.T) {
	t.Parallel()
	const ours = `"cniDir":"/var/lib/cni/multinet"`
	lossless := string(must(primary(calico).Network.MarshalJSON()))
	for name, tt := range map[string]struct {
		template netconf.Plugin
		primary  string
		path     string
		network  string
		want     string
	}{
		"list": {
			template, calico, "", "meta",
			`{"cniVersion":"1.0.0","name":"meta","plugins":[{"big":12345678901234567890.10,"capabilities":{"portMappings":true},` + ours + `,"delegates":[` + lossless + `],"type":"multinet"}]}`,
		},
		"lone plugin": {
			template, flannel, "", "meta",
			`{"cniVersion":"0.3.1","name":"meta","plugins":[{"big":12345678901234567890.10,` + ours + `,"delegates":[{"cniVersion":"0.3.1","name":"flannel","plugins":[{"cniVersion":"0.3.1","name":"flannel","type":"flannel"}]}],"type":"multinet"}]}`,
		},
		"by path": {
			template, calico, "/etc/cni/net.d/x", "meta",
			`{"cniVersion":"1.0.0","name":"meta","plugins":[{"big":12345678901234567890.10,"capabilities":{"portMappings":true},"clusterNetwork":"/etc/cni/net.d/x",` + ours + `,"type":"multinet"}]}`,
		},
		"without a name": {
			plugin(`{"type":"multinet"}`), calico, "/x", "calico",
			`{"cniVersion":"1.0.0","name":"calico","plugins":[{"capabilities":{"portMappings":true},"clusterNetwork":"/x","type":"multinet"}]}`,
		},
	} {
		doc := published(t, tt.template, primary(tt.primary), tt.path)
		nodetest.Equal(t, name, string(doc.data), tt.want+"\n")
		if doc.network != tt.network || doc.primary != "10-p.conflist" {
			t.Errorf("%s: network %s in front of %s", name, doc.network, doc.primary)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The version is the primary network's, as far as it is implemented.
func TestRenderVersion(t *testing.T) {
	t.Parallel()
	tests := []struct{ primary, template, want string }{
		{`"cniVersion":"1.0.0",`, ``, "1.0.0"},
		{`"cniVersion":"1.0",`, ``, "1.0.0"},
		{`"cniVersion":"0.9.0",`, ``, "0.4.0"},
		{`"cniVersion":"9.0.0",`, ``, "1.1.0"},
		{`"cniVersion":"",`, ``, "0.1.0"},
		{`"cniVersion":"0.4.0","cniVersions":["0.4.0","1.0.0","2.0.0"],`, ``, "0.4.0"}, // of a lone plugin
		{`"cniVersion":"1.1.0",`, `,"cniVersion":"0.4.0"`, "0.4.0"},
		{`"cniVersion":"0.3.1",`, `,"cniVersion":"1.0.0"`, "0.3.1"},
		{`"cniVersion":"1.0.0",`, `,"cniVersions":["0.4.0","1.1.0"]`, "1.0.0"},
	}
	for _, tt := range tests {
		p := primary(`{` + tt.primary + `"name":"x","type":"a"}`)
		before := string(must(p.Network.MarshalJSON()))
		data := string(published(t, plugin(`{"type":"multinet"`+tt.template+`}`), p, "").data)
		n := must(netconf.Parse([]byte(data)))
		nodetest.Equal(t, fmt.Sprintf("%s%s: version", tt.primary, tt.template), n.CNIVersion(), tt.want)
		if !strings.Contains(data, before) {
			t.Errorf("the primary network was changed: %s", data)
		}
	}
}

// Capabilities are those of now, whatever their types; the template's
// word on one stands.
func TestRenderCapabilities(t *testing.T) {
	t.Parallel()
	tests := []struct{ template, primary, want string }{
		{``, `{"type":"a","capabilities":{"b":true,"a":true,"no":false,"odd":"true"}},{"type":"c","capabilities":{"c":true}},{"type":"d","capabilities":[1]}`, `{"a":true,"b":true,"c":true}`},
		{`,"capabilities":{"io.kubernetes.cri.pod-annotations":true}`, `{"type":"a","capabilities":{"mac":true}}`, `{"io.kubernetes.cri.pod-annotations":true,"mac":true}`},
		{`,"capabilities":{"mac":false}`, `{"type":"a","capabilities":{"mac":true,"ips":true}}`, `{"ips":true,"mac":false}`},
	}
	for _, tt := range tests {
		p := primary(`{"cniVersion":"1.0.0","name":"x","plugins":[` + tt.primary + `]}`)
		n, err := render(plugin(`{"type":"multinet"`+tt.template+`}`), p.Network, "")
		nodetest.OK(t, err)
		if got, _ := n.Plugins()[0].Get("capabilities"); string(got) != tt.want {
			t.Errorf("%s: %s, want %s", tt.primary, got, tt.want)
		}
	}
}

// What cannot be run is not published.
func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]struct {
		key  string
		code uint
	}{
		`{}`:                                        {"type", 7},
		`{"type":"../x"}`:                           {"plugins[0].type", 7},
		`{"type":"multinet","name":"../x"}`:         {"name", 7},
		`{"type":"multinet","delegates":[]}`:        {"delegates", 7},
		`{"type":"multinet","capabilities":[]}`:     {"capabilities", 6},
		`{"type":"multinet","cniVersion":"banana"}`: {"cniVersion", 7},
		`{"type":"multinet","cniVersion":"0.0.9"}`:  {"cniVersion", 7},
		`{"type":"multinet","k":1e9999}`:            {"plugins[0].k", 6},
		`{"type":"multinet","k":"` + strings.Repeat("x", bounds.Network) + `"}`: {"", 7},
	} {
		doc, err := newDocument(plugin(template), primary(calico), "")
		var cause *netconf.Error
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &cause) || cause.Key != want.key || status.Code(err) != want.code || !doc.isZero() {
			t.Errorf("%.50s: %v, code %d", template, err, status.Code(err))
		}
	}
	if _, err := newDocument(template, primary(calico), "/etc/cni/net.d/\xff.conf"); !errors.Is(err, ErrInvalid) {
		t.Errorf("a path that would be another: %v", err)
	}
}

// FuzzRender: whatever can be the primary network has a configuration, which
// libcni and we read, and which holds that network as it was.
func FuzzRender(f *testing.F) {
	for _, s := range []string{calico, flannel, `{"name":"x","plugins":[{"type":"a","<":1e9999}],"cniVersions":["1.0.0"]}`, `{"name":"x","type":"a","\u2028":"&"}`, `{"name":"x","type":"a","capabilities":{"":true}}`} {
		f.Add([]byte(s), `{"type":"multinet"}`, "")
		f.Add([]byte(s), `{"type":"multinet","name":"m","cniVersion":"0.4.0"}`, "/p")
	}
	// Every JSON type in every place of a network is passed over or read.
	values := []string{`null`, `true`, `0`, `-1e400`, `"x"`, `""`, `[]`, `[null]`, `[[]]`, `{}`, `{"a":1}`, `[{}]`, `[1]`, `"\ud800"`}
	places := []string{
		`%s`, `[%s]`, `{"name":%s,"type":"a"}`, `{"name":"x","type":%s}`, `{"name":"x","cniVersion":%s,"type":"a"}`,
		`{"name":"x","cniVersions":%s,"type":"a"}`, `{"name":"x","cniVersions":[%s],"type":"a"}`, `{"name":"x","plugins":%s}`,
		`{"name":"x","plugins":[%s]}`, `{"name":"x","plugins":[{"type":%s}]}`, `{"name":"x","plugins":[{"type":"a","capabilities":%s}]}`,
		`{"name":"x","plugins":[{"type":"a","capabilities":{"b":%s}}]}`, `{"name":"x","type":"a","ipam":%s}`, `{"name":"x","type":"a","dns":%s}`,
		`{"name":"x","type":"a","prevResult":%s}`, `{"name":"x","plugins":[{"type":"a"}],"disableCheck":%s}`,
		`{"name":"x","plugins":[{"type":"a"}],"loadOnlyInlinedPlugins":%s}`, `{"name":"x","type":"a","delegates":%s}`,
		`{"name":"x","type":"a","args":{"cni":%s}}`, `{"name":"x","type":"a","unknown":%s}`, `{"name":"x","type":"a","unknown":%[1]s,"unknown":%[1]s}`,
	}
	for _, place := range places {
		for _, value := range values {
			f.Add(fmt.Appendf(nil, place, value), `{"type":"multinet"}`, "")
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, text, path string) {
		found := finding("", nil).find(tree("10-p.conf", string(data)))
		ours, err := netconf.ParsePlugin([]byte(text))
		if found.primary.Name == "" || err != nil {
			return
		}
		p := found.primary
		doc, err := newDocument(ours, p, path)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		oracle(t, doc)
		back, err := netconf.Parse(doc.data)
		if err != nil || back.Name() != doc.network {
			t.Fatalf("%v: %s", err, doc.data)
		}
		if path == "" {
			raw, _ := back.Plugins()[0].Get("delegates")
			var delegates []netconf.Network
			if err := json.Unmarshal(raw, &delegates); err != nil || len(delegates) != 1 || !delegates[0].Equal(p.Network) {
				t.Fatalf("%v: %s does not hold %s", err, doc.data, data)
			}
		}
		if again, _ := newDocument(ours, p, path); !bytes.Equal(again.data, doc.data) {
			t.Fatal("another result for the same")
		}
	})
}

// A story is a manager without a world: what is in the directory, what is
// published, and what time it is, are values.
type story struct {
	machine machine
	accept  func(netconf.File) bool
	now     time.Time
	fsys    fstest.MapFS
	ready   bool
	disk    disk
	fails   error // what publishing comes to
}

func newStory(files ...string) *story {
	return &story{machine: machine{grace: defaultGrace}, now: time.Unix(1e9, 0), fsys: tree(files...), ready: true}
}

// look is one turn.
func (s *story) look() step {
	f := facts{ready: s.ready, disk: s.disk, found: finding("", s.accept).find(s.fsys)}
	if f.found.primary.Name != "" {
		f.doc, f.docErr = newDocument(plugin(`{"type":"multinet"}`), f.found.primary, "")
	}
	step := s.machine.next(f, s.now)
	if step.publish {
		s.machine.did(&step, s.fails, s.now)
	}
	if step.publish && s.fails == nil {
		s.disk = disk{content: s.machine.want.data, ours: true, first: s.disk.first}
	}
	return step
}

// line is a turn as text: what was done, the primary network, what is degraded, and for
// how long to wait.
func (s *story) line() string {
	step := s.look()
	line := "-"
	if step.publish {
		line = "publish"
	}
	line += " " + s.machine.primary.Name
	for _, err := range step.degraded {
		for name, is := range map[string]error{
			"none": ErrNoPrimary, "gone": errGone, "bad": errBadPrimary, "unready": ErrNotReady, "lost": ErrReadinessLost,
			"undone": errUndone, "shadowed": errShadowed, "failed": errTest,
		} {
			if errors.Is(err, is) {
				line += " " + name
			}
		}
	}
	if step.wait != 0 {
		line += " " + step.wait.String()
	}
	if step.end != nil {
		line += " END"
	}
	return line
}

func (s *story) after(d time.Duration) *story { s.now = s.now.Add(d); return s }

var errTest = errors.New("test")

// A turn is what changes before a look, and what the look says.
type turn struct {
	after time.Duration
	files map[string]string // by name; removed if it is gone
	disk  *disk             // what others make of the published file
	want  string
}

const (
	gone = "(gone)"
	a    = "10-a.conflist"
	b    = "20-b.conf"
)

// tell goes through the turns.
func (s *story) tell(t *testing.T, turns ...turn) {
	t.Helper()
	for i, turn := range turns {
		for name, content := range turn.files {
			s.fsys[name] = &fstest.MapFile{Data: []byte(content)}
		}
		maps.DeleteFunc(s.fsys, func(_ string, f *fstest.MapFile) bool { return string(f.Data) == gone })
		if turn.disk != nil {
			s.disk = *turn.disk
		}
		nodetest.Equal(t, fmt.Sprint("turn ", i), s.after(turn.after).line(), turn.want)
	}
}

// The primary network is elected anew where its file changes. It stays while the file is
// broken, for a while when it is gone, and not at all when there is a better one.
func TestElection(t *testing.T) {
	t.Parallel()
	type files = map[string]string
	published := turn{want: "publish " + a}
	other := strings.ReplaceAll(calico, "portMappings", "bandwidth")
	first := newStory(a, calico)
	first.look()
	earlier := &first.disk // as the last manager has left it
	for name, turns := range map[string][]turn{
		"another takes its place": {
			published,
			{files: files{a: gone}, want: "- 10-a.conflist gone 10s"},
			{after: 4 * time.Second, want: "- 10-a.conflist gone 6s"},
			{after: 6 * time.Second, want: "publish 20-b.conf"},
			{want: "- 20-b.conf"},
		},
		"renamed to a better name": {published, {files: files{a: gone, "05-a.conflist": calico}, want: "- 05-a.conflist"}, {want: "- 05-a.conflist"}},
		"renamed to a worse name":  {published, {files: files{a: gone, "15-a.conflist": calico}, want: "- 15-a.conflist"}, {want: "- 15-a.conflist"}},
		"back in time, and grace begins again": {
			published,
			{files: files{a: gone}, want: "- 10-a.conflist gone 10s"},
			{after: 9 * time.Second, files: files{a: calico}, want: "- 10-a.conflist"},
			{files: files{a: gone}, want: "- 10-a.conflist gone 10s"},
			{after: 9 * time.Second, files: files{a: calico}, want: "- 10-a.conflist"},
		},
		"no other": {
			published,
			{files: files{a: gone, b: gone}, want: "- 10-a.conflist none 10s"},
			{after: time.Hour, want: "- 10-a.conflist none"},
			{disk: &disk{}, want: "publish 10-a.conflist none"}, // it is restored all the same
			{files: files{b: flannel}, want: "publish 20-b.conf"},
		},
		"broken": {
			published,
			{after: time.Hour, files: files{a: ""}, want: "- 10-a.conflist bad"},
			{after: time.Hour, files: files{a: calico[:40]}, want: "- 10-a.conflist bad"},
			{after: time.Hour, files: files{a: `[]`}, want: "- 10-a.conflist bad"},
			{after: time.Hour, files: files{a: `{"name":"x","type":"multinet"}`}, want: "- 10-a.conflist bad"},
			{files: files{a: other}, want: "publish 10-a.conflist"},
			{want: "- 10-a.conflist"},
		},
		"broken, then gone": {
			published,
			{after: time.Minute, files: files{a: ""}, want: "- 10-a.conflist bad"},
			{after: time.Minute, files: files{a: gone}, want: "- 10-a.conflist gone 10s"},
		},
		"refused is as good as gone": {
			published,
			{files: files{a: `{"cniVersion":"1.0.0","name":"lo","plugins":[{"type":"loopback"}]}`}, want: "- 10-a.conflist gone 10s"},
			{after: defaultGrace, want: "publish 20-b.conf"},
		},
		"a better one": {
			published,
			{files: files{"05-z.conf": "{"}, want: "- 10-a.conflist"},
			{files: files{"05-z.conf": flannel}, want: "publish 05-z.conf"},
			{files: files{"20-c.conf": flannel}, want: "- 05-z.conf"},
		},
		// With bad input from the start, what an earlier manager published stays.
		"none from the start": {
			{files: files{a: "", b: gone}, disk: &disk{content: []byte("earlier"), ours: true}, want: "-  none"},
			{after: time.Hour, want: "-  none"},
		},
		"broken at the start, where nothing is published": {{files: files{a: calico[:20]}, want: "publish 20-b.conf"}},
		"broken at the start": {
			{files: files{a: calico[:20]}, disk: &disk{content: []byte("earlier"), ours: true}, want: "-  bad 10s"},
			{after: 4 * time.Second, want: "-  bad 6s"},
			{after: 6 * time.Second, want: "publish 20-b.conf"},
			{after: time.Hour, want: "- 20-b.conf"},
		},
		// After a restart, or for the next who has the lock, what is published is the last known good.
		"gone at the start": {
			{files: files{a: gone}, disk: earlier, want: "-  gone 10s"},
			{after: 4 * time.Second, disk: &disk{}, want: "publish  gone 6s"}, // it is restored all the same
			{after: 6 * time.Second, want: "publish 20-b.conf"},
		},
		"none at the start": {
			{files: files{a: gone, b: gone}, disk: earlier, want: "-  none 10s"},
			{after: time.Hour, disk: &disk{}, want: "publish  none"},
			{files: files{a: other}, want: "publish 10-a.conflist"},
		},
		"there at the start":                   {{disk: earlier, want: "- 10-a.conflist"}},
		"renamed and changed at the start":     {{files: files{a: gone, "05-a.conflist": other}, disk: earlier, want: "publish 05-a.conflist"}},
		"with another mode at the start":       {{disk: &disk{content: earlier.content, ours: true, wrongMode: true}, want: "publish 10-a.conflist"}},
		"gone at the start, with another mode": {{files: files{a: gone}, disk: &disk{content: earlier.content, ours: true, wrongMode: true}, want: "publish  gone 10s"}},
		"of somebody else at the start":        {{files: files{a: gone}, disk: &disk{content: earlier.content}, want: "publish 20-b.conf"}},
		"referred to at the start, and gone": {
			{files: files{a: gone}, disk: &disk{content: []byte(`{"cniVersion":"1.0.0","name":"m","plugins":[{"type":"multinet","clusterNetwork":"/etc/cni/net.d/10-a.conflist"}]}`), ours: true}, want: "- 10-a.conflist gone 10s"},
			{after: 10 * time.Second, want: "publish 20-b.conf"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(a, calico, b, flannel)
			s.accept = func(f netconf.File) bool { return f.Network.Name() != "lo" }
			s.tell(t, turns...)
			if want := s.machine.primary.Name; s.machine.published.primary != want && s.machine.published.primary != "" {
				t.Errorf("published for %q, want %q", s.machine.published.primary, want)
			}
		})
	}
}

// A manager that begins with a broken file takes no time where what is published is right,
// nor without grace.
func TestNothingToWaitForAtTheStart(t *testing.T) {
	t.Parallel()
	s := newStory(a, calico[:20], b, flannel)
	s.tell(t, turn{want: "publish 20-b.conf"})
	s.machine = machine{grace: defaultGrace}
	s.tell(t, turn{want: "- 20-b.conf"})
	s.machine, s.disk.content = machine{}, []byte("earlier")
	s.tell(t, turn{want: "publish 20-b.conf"})
}

// What others undo is restored, at once, then ever more slowly, and
// at once again after a minute of peace.
func TestRestoringSlowsDown(t *testing.T) {
	t.Parallel()
	s := newStory(a, calico)
	s.look()
	var waited []time.Duration
	for range 10 {
		s.after(10 * time.Millisecond)
		s.disk.content = []byte(flannel)
		step := s.look()
		waited = append(waited, step.wait.Round(time.Second))
		if step.wait != 0 {
			if again := s.look(); again.publish || again.wait != step.wait {
				t.Errorf("looking again: %+v", again)
			}
			step = s.after(step.wait).look()
		}
		if !step.publish || !step.restores {
			t.Fatalf("not restored after %v: %+v", waited, step)
		}
	}
	nodetest.Equal(t, "pauses", fmt.Sprint(waited), "[0s 1s 2s 4s 8s 16s 32s 1m0s 1m0s 1m0s]")
	nodetest.Equal(t, "restored", s.machine.restored, 10)
	for _, damage := range []disk{{}, {content: []byte{}}, {ours: true}, {unusable: errTest}} {
		s.tell(t, turn{after: time.Minute, disk: &damage, want: "publish 10-a.conflist"}, turn{want: "- 10-a.conflist"})
	}
}

// A failure to write is waited out, and does not stop anything else.
func TestPublishingFails(t *testing.T) {
	t.Parallel()
	s := newStory(a, calico)
	s.fails = errTest
	s.tell(
		t, turn{want: "publish 10-a.conflist failed 1s"}, turn{want: "- 10-a.conflist failed 1s"},
		turn{after: time.Second, want: "publish 10-a.conflist failed 2s"}, turn{want: "- 10-a.conflist failed 2s"},
		turn{after: 2 * time.Second, want: "publish 10-a.conflist failed 4s"},
	)
	s.fails = nil
	s.tell(t, turn{after: 4 * time.Second, want: "publish 10-a.conflist"}, turn{want: "- 10-a.conflist"})
	nodetest.Equal(t, "restored", s.machine.restored, 0)
}

// Nothing before the readiness file is there; its loss is the end.
func TestNothingIsDoneWithoutReadiness(t *testing.T) {
	t.Parallel()
	s := newStory(a, calico)
	s.ready = false
	s.tell(t, turn{want: "-  unready"}, turn{after: time.Hour, want: "-  unready"})
	s.ready = true
	s.tell(t, turn{want: "publish 10-a.conflist"})
	s.ready = false
	s.tell(t, turn{want: "- 10-a.conflist lost END"})
	if s.disk.content == nil {
		t.Error("the file was removed")
	}
}

// The directory being gone is not a change of our file, and costs no pause.
func TestDirectoryGone(t *testing.T) {
	t.Parallel()
	s := newStory(a, calico)
	s.look()
	for range 5 {
		s.tell(
			t, turn{after: time.Second, files: map[string]string{a: gone}, disk: &disk{err: errTest}, want: "- 10-a.conflist none failed 10s"},
			turn{after: 2 * longPause, files: map[string]string{a: calico}, disk: &disk{}, want: "publish 10-a.conflist"},
		)
	}
	nodetest.Equal(t, "restored", s.machine.restored, 5)
}

func TestError(t *testing.T) {
	t.Parallel()
	decode := &netconf.Error{Kind: netconf.ErrDecode, Key: "type"}
	tests := []struct {
		err  error
		text string
		code uint
	}{
		{fail("publish", "/x", fs.ErrPermission), `publish "/x": permission denied`, 5},
		{fail("read", "a\nb", errNotRegular), `read "a\nb": not a regular file`, 5},
		{fail("use", "", because{ErrInvalid, errors.New("Dir: x")}), `use: invalid: Dir: x`, 7},
		{fail("publish", "/x", because{ErrInvalid, &netconf.Error{Kind: netconf.ErrInvalid, Key: "name"}}), `publish "/x": invalid configuration: key "name"`, 7},
		{fail("read", "x", decode), `read "x": cannot decode configuration: key "type"`, 6},
		{fail("follow", "", because{errBadPrimary, decode}), `follow: the primary network cannot be used: cannot decode configuration: key "type"`, 6},
		{fail("follow", "", errors.Join(fs.ErrExist, errUndone)), "follow: file already exists\nchanged or removed by others", 11},
		{fail("run", "", ErrReadinessLost), `run: the readiness file was removed`, 11},
		{fail("lock", "", ErrLocked), `lock: another manager is at work`, 11},
	}
	for _, tt := range tests {
		nodetest.Equal(t, "text", tt.err.Error(), tt.text)
		nodetest.Code(t, tt.err, tt.code)
	}
	if fail("x", "", nil) != nil {
		t.Error("an error of nothing")
	}
}
