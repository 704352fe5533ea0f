package autoconf

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
)

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
		"renamed to a worse name and changed": {
			published,
			{files: files{a: gone, "15-a.conflist": other}, want: "- 10-a.conflist gone 10s"},
			{after: defaultGrace, want: "publish 15-a.conflist"},
		},
		"renamed to a better name and changed": {published, {files: files{a: gone, "05-a.conflist": other}, want: "publish 05-a.conflist"}},
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
		"broken at the start, and whole again": {
			{files: files{a: calico[:20]}, disk: &disk{content: []byte("earlier"), ours: true}, want: "-  bad 10s"},
			{after: 9 * time.Second, files: files{a: calico}, want: "publish 10-a.conflist"},
		},
		// After a restart, or for the next who has the lock, what is published is the last known good.
		"gone at the start": {
			{files: files{a: gone}, disk: earlier, want: "-  gone 10s"},
			{after: 4 * time.Second, disk: &disk{}, want: "publish  gone 6s"}, // it is restored all the same
			{after: 6 * time.Second, want: "publish 20-b.conf"},
		},
		"gone at the start, and back": {
			{files: files{a: gone}, disk: earlier, want: "-  gone 10s"},
			{after: 9 * time.Second, files: files{a: calico}, want: "- 10-a.conflist"},
		},
		"none at the start": {
			{files: files{a: gone, b: gone}, disk: earlier, want: "-  none 10s"},
			{after: time.Hour, disk: &disk{}, want: "publish  none"},
			{files: files{a: other}, want: "publish 10-a.conflist"},
		},
		"there at the start":                   {{disk: earlier, want: "- 10-a.conflist"}},
		"changed at the start":                 {{files: files{a: other}, disk: earlier, want: "publish 10-a.conflist"}},
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
