package autoconf

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
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
		{"json counts", tree("10-a.json", flannel, "20-b.conflist", calico), "10-a.json"},
		{"a list in .conf", tree("10-a.conf", calico, "20-b.conflist", calico), "20-b.conflist -10-a.conf"},
		{"one plugin in .conflist", tree("10-a.conflist", flannel, "20-b.conf", flannel), "20-b.conf -10-a.conflist"},
		{"hidden files count", tree(".a.conf", flannel, "10-a.conf", flannel), ".a.conf"},
		{"not lower case first", tree("a.conf", flannel, "Z.conf", flannel), "Z.conf"},
		{"other extensions", tree("10-a.conf.bak", flannel, "10-a", flannel, "10-a.yaml", flannel, "10-a.CONF", flannel), ""},
		{"put aside", tree("05-a.cilium_bak", flannel, "06-a.conf_bak", flannel, "07-a.conflist.tmp-1", flannel, "08.tmp-x.conf", flannel), ""},
		{"the bad are passed over", tree("10-a.conf", "{", "20-b.conf", flannel, "30-c.conf", "{"), "20-b.conf -10-a.conf"},
		{"none", tree(), ""},
		{"none valid", tree("10-a.conf", "", "20-b.conflist", "[]"), "-10-a.conf -20-b.conflist"},
		{"own file", tree("00-multinet.conflist", calico, "10-a.conf", flannel), "10-a.conf"},
		{"own file, torn", tree("00-multinet.conflist", "{", "10-a.conf", flannel), "10-a.conf"},
		{"own type", tree("05-x.conf", `{"name":"x","type":"multinet"}`, "10-a.conf", flannel), "10-a.conf -05-x.conf"},
		{"own type in a list", tree("05-x.conflist", `{"name":"x","plugins":[{"type":"bridge"},{"type":"multinet"}]}`), "-05-x.conflist"},
		{"own type in a delegate", tree("05-x.conf", `{"name":"x","type":"multus","delegates":[{"name":"y","plugins":[{"type":"multinet"}]}]}`), "-05-x.conf"},
		{"own type in flannel's delegate", tree("05-x.conf", `{"name":"x","type":"flannel","delegate":{"type":"multinet"}}`), "-05-x.conf"},
		{"own type, escaped", tree("05-x.conf", `{"name":"x","type":"multus","delegates":[{"ty\u0070e":"mult\u0069net"}]}`), "-05-x.conf"},
		{"own type, spelled otherwise", tree("05-x.conf", `{"name":"x","type":"multus","delegates":[{"Type":"multinet"}]}`), "-05-x.conf"},
		{"own type, in capitals and beside another", tree("05-x.conf", `{"name":"x","type":"a","TYPE":"multinet"}`), "-05-x.conf"},
		{"own type in the sub-directory", tree("05-x.conflist", `{"name":"x","plugins":[{"type":"a"}]}`, "x/1.conf", `{"type":"multinet"}`), "-05-x.conflist"},
		{"own file by reference, in a directory of another name", tree("05-x.conf", `{"name":"x","type":"multus","clusterNetwork":"/host/link/00-multinet.conflist"}`), "-05-x.conf"},
		{"own file by reference", tree("05-x.conf", `{"name":"x","type":"multus","clusterNetwork":"/etc/cni//net.d/00-multinet.conflist"}`), "-05-x.conf"},
		{"a type of a similar name", tree("05-x.conf", `{"name":"x","type":"multinet2"}`), "05-x.conf"},
		{"huge numbers", tree("05-x.conf", `{"name":"x","type":"a","n":1e99999}`), "-05-x.conf"},
		{"later CNI", tree("05-x.conf", `{"cniVersion":"9.9.9","name":"x","type":"a"}`), "05-x.conf"},
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
