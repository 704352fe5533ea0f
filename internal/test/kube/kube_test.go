package kubetest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A Pod is a type that is named like a kind, and whose JSON is like that of the kind.
type Pod struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		NodeName string `json:"nodeName"`
	} `json:"spec"`
}

// newPod returns the pod p of the node n1, with an annotation.
func newPod(a string) *Pod {
	p := &Pod{Metadata: metadata{Namespace: "default", Name: "p", Annotations: map[string]string{"a": a}}}
	p.Spec.NodeName = "n1"
	return p
}

// start starts a server whose form of protobuf is a word before JSON.
func start(t *testing.T) *Server {
	t.Helper()
	s := NewServer(func(body []byte, _ *int, _ any) (any, *int, error) {
		text, ok := strings.CutPrefix(string(body), "protobuf ")
		if !ok {
			return nil, nil, errors.New("not protobuf")
		}
		return json.RawMessage(text), nil, nil
	})
	t.Cleanup(s.Close)
	return s
}

func (s *Server) endpoint(token string) endpoint {
	s.SetToken(token)
	return endpoint{s.url, token, s.ca, certified}
}

// try makes a request for the pod p, and returns the HTTP status and the body.
func (c *client) try() (int, string, error) {
	q, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.url+pods+"/p", nil)
	nodetest.OK(c, err)
	resp, err := c.http.Do(q)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestRequestsAreRecorded(t *testing.T) {
	t.Parallel()
	s := start(t)
	Put(s, newPod("1"))
	c := s.endpoint("").client(t)
	c.annotate(pods+"/p/status", "b")
	c.send(t.Context(), "GET", "/version", "", "").Body.Close()
	got := s.Requests()
	for i := range got {
		got[i].Time = time.Time{}
	}
	nodetest.Equal(t, "requests", got, []Request{
		{Verb: "patch", Resource: "pods/status", Namespace: "default", Name: "p", UserAgent: "Go-http-client/1.1", Body: `{"metadata":{"annotations":{"a":"b"}}}`},
		{Resource: "/version", UserAgent: "Go-http-client/1.1"},
	})
	nodetest.Equal(t, "patches", s.Count("patch", "pods/status"), 1)
	nodetest.Equal(t, "requests for pods", s.Count("", "pods"), 0)
}

func TestObjectsOfTheTest(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := Put(s, newPod("1"))
	w := s.endpoint("").client(t).watch(pods, "resourceVersion="+first.Metadata.ResourceVersion)
	Edit(s, "default", "p", func(p *Pod) { p.Metadata.Annotations["a"] = "2" })
	nodetest.Equal(t, "UID", Get[Pod](s, "default", "p").Metadata.UID, first.Metadata.UID)
	other := newPod("3")
	other.Metadata.UID = "other"
	Put(s, other)
	w.expect("MODIFIED 2", "MODIFIED 2", "DELETED 2", "ADDED 3")
	nodetest.Equal(t, "UIDs", []string{List[Pod](s)[0].Metadata.UID, Get[Pod](s, "default", "p").Metadata.UID}, []string{"other", "other"})
	Delete[Pod](s, "default", "p")
	nodetest.Equal(t, "pods", List[Pod](s), nil)

	d := Put(s, Definition{Namespace: "default", Name: "net", Config: "{}", Annotations: map[string]string{"a": "1"}})
	nodetest.Equal(t, "definition", *Get[Definition](s, "default", "net"), d)
}

// Versions are given a second time. A watch that knows more than the server waits.
func TestABackupIsRestoredWithItsVersions(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := Put(s, newPod("1"))
	restore := s.Backup()
	second := Put(s, newPod("2"))
	Put(s, Definition{Namespace: "default", Name: "net"})
	restore()
	nodetest.Equal(t, "pod", Get[Pod](s, "default", "p"), first)
	nodetest.Equal(t, "definitions", List[Definition](s), nil)
	w := s.endpoint("").client(t).watch(pods, "resourceVersion="+second.Metadata.ResourceVersion)
	again := Put(s, newPod("again"))
	nodetest.Equal(t, "version", again.Metadata.ResourceVersion, second.Metadata.ResourceVersion)
	Put(s, newPod("3"))
	w.expect("MODIFIED 3")
}

func TestFaultsOfWatches(t *testing.T) {
	t.Parallel()
	s := start(t)
	p := Put(s, newPod("1"))
	c := s.endpoint("").client(t)
	w := c.watch(pods, "resourceVersion="+p.Metadata.ResourceVersion)
	heal := s.Break(Fault{BlackHole: true, Verb: "watch", Resource: "pods"})
	Put(s, newPod("2"))
	heal()
	w.expect("MODIFIED 2") // what it has missed
	nodetest.Equal(t, "watches", s.Watches(), 1)
	s.CutWatches("pods")
	w.expect("")
	nodetest.OK(t, s.Wait(t.Context(), func() bool { return s.Watches() == 0 }))
	s.Compact()
	c.watch(pods, "resourceVersion="+p.Metadata.ResourceVersion).expect("ERROR")
	s.Break(Fault{NoSendInitialEvents: true})
	c.want(422, "sendInitialEvents", "GET", pods+"?watch=true&"+initial, "", "")
}

func TestABodyMayBeProtobuf(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.endpoint("").client(t).want(201, "", "POST", pods, "application/vnd.kubernetes.protobuf", `protobuf {"metadata":{"generateName":"p-"}}`)
	nodetest.Equal(t, "pods", len(List[Pod](s)), 1)
}

// Faults meet requests in their order.
func TestFaults(t *testing.T) {
	t.Parallel()
	s := start(t)
	Put(s, newPod("1"))
	c := s.endpoint("").client(t)
	for name, tt := range map[string]struct {
		fault Fault
		code  int // 0: no answer
		says  string
	}{
		"a status":           {Fault{Status: 403}, 403, "a fault"},
		"rubbish":            {Fault{Body: "<html>"}, 200, "<html>"},
		"a connection cut":   {Fault{Cut: true}, 0, ""},
		"for other requests": {Fault{Cut: true, Resource: "nodes"}, 200, `"name":"p"`},
		"for other verbs":    {Fault{Cut: true, Verb: "watch"}, 200, `"name":"p"`},
	} {
		heal := s.Break(tt.fault)
		code, text, err := c.try()
		if code != tt.code || !strings.Contains(text, tt.says) || (err != nil) != (tt.code == 0) {
			t.Errorf("%s: %d %s, %v", name, code, text, err)
		}
		heal()
		heal()
	}
	s.Break(Fault{Status: 403, Times: 1})
	s.Break(Fault{Status: 500, Times: 1})
	for _, want := range []int{403, 500, 200} {
		code, _, _ := c.try()
		nodetest.Equal(t, "HTTP status", code, want)
	}
}

// The requests that a fault holds are served when it is healed, and end with the server.
func TestHeldRequests(t *testing.T) {
	t.Parallel()
	for _, fault := range []Fault{{BlackHole: true}, {Delay: time.Hour, Status: 500}} {
		for end, want := range map[string]int{"healed": 200, "closed": 0} {
			s := start(t)
			Put(s, newPod("1"))
			fault.Verb, fault.Resource = "get", "pods"
			heal := s.Break(fault)
			c, ended := s.endpoint("").client(t), make(chan int, 1)
			go func() {
				code, _, _ := c.try()
				ended <- code
			}()
			nodetest.OK(t, s.Wait(t.Context(), func() bool { return s.Count("get", "pods") == 1 }))
			nodetest.Equal(t, "answers", len(ended), 0)
			if end == "healed" {
				heal()
			} else {
				s.Close()
			}
			nodetest.Equal(t, "HTTP status when it is "+end, nodetest.Come(t, ended, "the end of the request"), want)
		}
	}
}

func TestAStoppedServerRefusesConnectionsAndKeepsItsObjects(t *testing.T) {
	t.Parallel()
	s := start(t)
	Put(s, newPod("1"))
	c := s.endpoint("").client(t)
	for range 2 {
		s.Stop()
	}
	_, _, err := c.try()
	nodetest.Is(t, err, syscall.ECONNREFUSED)
	for range 2 {
		s.Start()
	}
	code, _, err := c.try()
	nodetest.OK(t, err)
	nodetest.Equal(t, "HTTP status", code, 200)
}
