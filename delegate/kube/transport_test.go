package kube

import (
	"net/http"
	"sync"
	"testing"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
)

func TestRequestsAreObservedInTheWordsOfARole(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]Request{
		"GET /api/v1/pods?watch=true&fieldSelector=x":                                   {Verb: "watch", Resource: "pods"},
		"GET /api/v1/namespaces/blue/pods":                                              {Verb: "list", Resource: "pods"},
		"GET /api/v1/namespaces/blue/pods/web":                                          {Verb: "get", Resource: "pods"},
		"PATCH /api/v1/namespaces/blue/pods/web/status":                                 {Verb: "patch", Resource: "pods/status"},
		"POST /apis/events.k8s.io/v1/namespaces/blue/events":                            {Verb: "create", Resource: "events"},
		"DELETE /apis/k8s.cni.cncf.io/v1/namespaces/b/network-attachment-definitions/n": {Verb: "delete", Resource: definitionResource},
		"PUT /api/v1/namespaces/blue/pods/web":                                          {Verb: "update", Resource: "pods"},
		"GET /api/v1/namespaces/blue":                                                   {Verb: "get", Resource: "namespaces"},
		"GET /version":                                                                  {Verb: "get"},
		"GET /":                                                                         {Verb: "get"},
	} {
		var method, path string
		for i := range target {
			if target[i] == ' ' {
				method, path = target[:i], target[i+1:]
			}
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://api"+path, nil)
		nodetest.OK(t, err)
		if got := requestOf(req); got != want {
			t.Errorf("%s: %+v, want %+v", target, got, want)
		}
	}
}

func TestTheObserverIsToldOfEachRequest(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	var mu sync.Mutex
	seen := make(map[Request]int)
	s.Break(kubetest.Fault{Verb: "get", Cut: true, Times: 1})
	v := open(t, s, Config{NADWait: -1, Observer: func(r Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r]++
	}})
	awaitSync(t, v)
	for range 2 {
		_, _ = v.Definition(t.Context(), ref("blue", "storage"))
	}
	v.Close()
	want := map[Request]int{
		{Verb: "watch", Resource: definitionResource, Code: 200}: 1,
		{Verb: "get", Resource: definitionResource}:              1,
		{Verb: "get", Resource: definitionResource, Code: 404}:   1,
	}
	mu.Lock()
	defer mu.Unlock()
	nodetest.Equal(t, "requests", seen, want)
}
