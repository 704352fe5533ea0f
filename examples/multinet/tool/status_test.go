package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/nodetest"
)

// daemon serves a daemon's socket, and returns its directory.
func daemon(t *testing.T, serve http.HandlerFunc) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "multinet") //nolint:usetesting // a socket has a short path
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "multus.sock"))
	nodetest.OK(t, err)
	s := &http.Server{Handler: serve} //nolint:gosec // its only client is the test
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return dir
}

// answers is a daemon that answers always the same.
func answers(t *testing.T, status int, body string) string {
	t.Helper()
	return daemon(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
}

// process runs the operator's command as the executable does.
func (h *host) process(t *testing.T, words ...string) (exit int, out, said string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	exit = Run(t.Context(), append(words, "--dir", h.state()), plugin.Process{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr})
	return exit, stdout.String(), stderr.String()
}

const (
	multiStatus   = `{"name":"multi","interface":"eth0","ips":["10.9.0.2"],"default":true}`
	storageStatus = `{"name":"team-b/fast","interface":"net1","ips":["10.9.1.2"]}`
)

func TestStatusIsComparedWithThePods(t *testing.T) {
	t.Parallel()
	changed := strings.Replace(storageStatus, "10.9.1.2", "10.9.1.9", 1)
	third := `{"name":"by-hand","interface":"net7"}`
	for _, tt := range []struct {
		name, pod string
		want      []string // interface and difference
		text      string   // part of the table
	}{
		{"equal", "[" + multiStatus + "," + storageStatus + "]", []string{"eth0", "net1"}, "eth0: equal\nnet1: equal\n"},
		{
			"equal in another form", "[\n  {\"default\": true, \"ips\": [\"10.9.0.2\"], \"interface\": \"eth0\", \"name\": \"multi\"},\n " + storageStatus + "\n]\n",
			[]string{"eth0", "net1"},
			"",
		},
		{
			"changed", "[" + multiStatus + "," + changed + "]",
			[]string{"eth0", "net1 changed"},
			"net1: the entries differ\n  recorded  {\"interface\":\"net1\",\"ips\":[\"10.9.1.2\"],\"name\":\"team-b/fast\"}\n  pod       {\"interface\":\"net1\",\"ips\":[\"10.9.1.9\"],",
		},
		{"missing", "[" + storageStatus + "]", []string{"eth0 missing", "net1"}, "eth0: the pod has no such entry\n  recorded  {"},
		{"not written", "", []string{"eth0 missing", "net1 missing"}, ""},
		{
			"unexpected", "[" + multiStatus + "," + third + "," + storageStatus + "]",
			[]string{"eth0", "net1", "net7 unexpected"},
			"net7: only the pod has this entry\n  pod       {\"interface\":\"net7\",\"name\":\"by-hand\"}\n",
		},
		{"moved", "[" + storageStatus + "," + multiStatus + "]", []string{"eth0", "net1 moved"}, "net1: the pod has this entry before the one above\n"},
		{"twice", "[" + multiStatus + "," + multiStatus + "," + storageStatus + "]", []string{"eth0", "net1", "eth0 unexpected"}, ""},
		{"no list", "{<", []string{"eth0 missing", "net1 missing", " unexpected"}, "(no interface): only the pod has this entry\n  pod       \"{"},
		{"elements of another form", `[7,null]`, []string{"eth0 missing", "net1 missing", " unexpected", " unexpected"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.attach(t, podArgs, selected().JSON())
			socket := answers(t, http.StatusOK, tt.pod)
			exit := 1
			if len(tt.want) == 2 && !strings.Contains(strings.Join(tt.want, ""), " ") {
				exit = 0
			}
			got, out, said := h.process(t, "status", "--diff", "c1", "--socket-dir", socket)
			if got != exit || said != "" || !strings.Contains(out, tt.text) {
				t.Errorf("status %d, want %d: %s\n%s", got, exit, said, out)
			}
			got, out, said = h.process(t, "status", "c1", "--diff", "--socket-dir", socket, "-o", "json")
			var pairs []pairView
			if err := json.Unmarshal([]byte(out), &pairs); err != nil || got != exit || said != "" {
				t.Fatalf("status %d, want %d: %v, %s\n%s", got, exit, err, said, out)
			}
			var differences []string
			for _, p := range pairs {
				if (p.Recorded == nil) != (p.Difference == "unexpected") || (p.Pod == nil) != (p.Difference == "missing") {
					t.Errorf("%+v", p)
				}
				differences = append(differences, strings.TrimRight(p.Interface+" "+p.Difference, " "))
			}
			if d := cmp.Diff(tt.want, differences); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// The daemon is asked once, for the pod that the runtime has named. A static pod has another
// UID in the API.
func TestDiffAsksForThePod(t *testing.T) {
	t.Parallel()
	for source, uid := range map[string]string{"": "a&b=c d", "api": "a&b=c d", "file": "", "http": ""} {
		h := newHost(t)
		origin := selected()
		origin.PodSource = source
		h.attach(t, strings.Replace(podArgs, "UID=u-1", "UID=a&b=c d", 1), origin.JSON())
		asked := make(chan *http.Request, 9)
		socket := daemon(t, func(w http.ResponseWriter, r *http.Request) {
			asked <- r
			// Larger than the buffer of the server, which then does not know the length.
			fmt.Fprint(w, "["+multiStatus+","+storageStatus+"]"+strings.Repeat(" ", 100<<10))
		})
		if exit, out, said := h.process(t, "status", "--diff", "c1", "--socket-dir", socket); exit != 0 {
			t.Errorf("status %d: %s\n%s", exit, said, out)
		}
		r := <-asked
		want := url.Values{"namespace": {"team-a"}, "name": {"web-0"}, "uid": {uid}}
		if d := cmp.Diff(want, r.URL.Query()); d != "" || r.Method != http.MethodGet || r.URL.Path != "/network-status" || len(asked) > 0 {
			t.Errorf("pod from %q: %s %s, and %d more (-want +got):\n%s", source, r.Method, r.URL, len(asked), d)
		}
	}
}

// Failing is not the same as a difference: the status is 2, and the reason is on stderr.
func TestDiffThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.attach(t, podArgs, selected().JSON())
	for _, tt := range []struct {
		status     int
		body, want string
	}{
		{404, "pod team-a/web-0 has another UID\n", "pod team-a/web-0: it is gone: pod team-a/web-0 has another UID"},
		{404, "404 page not found\n", "the daemon does not work with Kubernetes"},
		{404, `{"code":999,"msg":"unknown path \"/network-status\""}`, "the daemon does not work with Kubernetes"},
		{501, "no", "the daemon does not work with Kubernetes"},
		{503, `{"code":11,"msg":"try later","details":"connection refused"}`, "the API cannot be asked at the moment: try later; connection refused"},
		{403, `{"code":999,"msg":"user 7 may not connect"}`, "status 403: user 7 may not connect"},
		{500, "a\n\tb" + strings.Repeat("x", 9999), "status 500: a bxx"},
	} {
		exit, out, said := h.process(t, "status", "--diff", "c1", "--socket-dir", answers(t, tt.status, tt.body))
		if exit != 2 || out != "" || !strings.Contains(said, tt.want) || strings.Count(said, "\n") != 1 || len(said) > 600 {
			t.Errorf("%d %s: status %d, %q, %q", tt.status, tt.body, exit, out, said)
		}
	}
	for answer, want := range map[string]string{
		"": "malformed", "SSH-2.0\r\n\r\n": "malformed", "HTTP/1.1 200": "malformed", "HTTP/1.1 x\r\n\r\n": "malformed",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]": "incomplete",
	} {
		socket := daemon(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		})
		if exit, out, said := h.process(t, "status", "--diff", "c1", "--socket-dir", socket); exit != 2 || out != "" || !strings.Contains(said, want) {
			t.Errorf("%q: status %d, %q, %q", answer, exit, out, said)
		}
	}
	absent := filepath.Join(h.Dir, "absent")
	for want, words := range map[string][]string{
		"no daemon answers on " + absent: {"status", "--diff", "c1", "--socket-dir", absent},
		"no record":                      {"status", "--diff", "other", "--socket-dir", absent},
		"usage":                          {"status", "--diff"},
		"not defined":                    {"status", "-diff", "c1", "--what"},
		"provided but":                   {"list", "--diff"},
		"connect: ":                      {"status", "--diff=true", "c1", "--socket-dir", absent},
	} {
		if exit, out, said := h.process(t, words...); exit != 2 || out != "" || !strings.Contains(said, want) {
			t.Errorf("%v: status %d, %q, %q", words, exit, out, said)
		}
	}
	if exit, _, said := h.process(t, "status", "c1", "--socket-dir", absent); exit != 1 || !strings.Contains(said, "--socket-dir is for") {
		t.Errorf("--socket-dir without --diff: status %d, %q", exit, said)
	}
	if exit, _, said := h.process(t, "show", "diff"); exit != 1 {
		t.Errorf("a container of that name: status %d, %q", exit, said)
	}
	lone := newHost(t)
	lone.attach(t, "IgnoreUnknown=1", nil)
	if exit, _, said := lone.process(t, "status", "--diff", "c1", "--socket-dir", absent); exit != 2 || !strings.Contains(said, "not attached for a pod") {
		t.Errorf("without a pod: status %d, %q", exit, said)
	}
}
