package kubepath

import (
	"net/url"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestRequestsAreNamedInTheWordsOfARole(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]Request{
		"GET /api/v1/pods?watch=true&fieldSelector=x":                                   {Verb: "watch", Group: "v1", Resource: "pods"},
		"GET /api/v1/namespaces/blue/pods":                                              {Verb: "list", Group: "v1", Resource: "pods", Namespace: "blue"},
		"GET /api/v1/namespaces/blue/pods/web":                                          {Verb: "get", Group: "v1", Resource: "pods", Namespace: "blue", Name: "web"},
		"PATCH /api/v1/namespaces/blue/pods/web/status":                                 {Verb: "patch", Group: "v1", Resource: "pods/status", Namespace: "blue", Name: "web"},
		"POST /apis/events.k8s.io/v1/namespaces/blue/events":                            {Verb: "create", Group: "events.k8s.io/v1", Resource: "events", Namespace: "blue"},
		"DELETE /apis/k8s.cni.cncf.io/v1/namespaces/b/network-attachment-definitions/n": {Verb: "delete", Group: "k8s.cni.cncf.io/v1", Resource: "network-attachment-definitions", Namespace: "b", Name: "n"},
		"PUT /api/v1/namespaces/blue/pods/web":                                          {Verb: "update", Group: "v1", Resource: "pods", Namespace: "blue", Name: "web"},
		"GET /api/v1/namespaces/blue":                                                   {Verb: "get", Group: "v1", Resource: "namespaces", Name: "blue"},
		"GET /version":                                                                  {Verb: "get"},
		"GET /":                                                                         {Verb: "get"},
	} {
		method, path, _ := strings.Cut(target, " ")
		u, err := url.Parse(path)
		nodetest.OK(t, err)
		nodetest.Equal(t, target, Parse(method, u), want)
	}
}
