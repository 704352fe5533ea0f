package kube

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

const notReady = "multinetd.metacni.io/not-ready"

// tainted makes the node node1 with taints such as key=value:effect.
func tainted(s *kubetest.Server, taints ...string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"a": "b"}}}
	for _, t := range taints {
		key, effect, _ := strings.Cut(t, ":")
		key, value, _ := strings.Cut(key, "=")
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	kubetest.Put(s, n)
}

// taints are those of the node node1.
func taints(s *kubetest.Server) (all []string) {
	for _, t := range kubetest.Get[corev1.Node](s, "", "node1").Spec.Taints {
		all = append(all, t.ToString())
	}
	return all
}

func TestOnlyTheTaintsWithTheKeyAreRemoved(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, after []string
		patches       int
	}{
		"no taints":                 {nil, nil, 0},
		"only others":               {[]string{"a:NoSchedule"}, []string{"a:NoSchedule"}, 0},
		"the only one":              {[]string{notReady + ":NoSchedule"}, nil, 1},
		"between others":            {[]string{"a:NoSchedule", notReady + "=x:NoSchedule", "b:NoExecute"}, []string{"a:NoSchedule", "b:NoExecute"}, 1},
		"with each effect":          {[]string{notReady + ":NoSchedule", "a=b:NoSchedule", notReady + "=y:NoExecute"}, []string{"a=b:NoSchedule"}, 1},
		"a key that begins like it": {[]string{notReady + "-yet:NoSchedule"}, []string{notReady + "-yet:NoSchedule"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			tainted(s, tt.before...)
			v := open(t, s, Config{Node: "node1"})
			nodetest.OK(t, v.RemoveTaint(t.Context(), notReady))
			nodetest.Equal(t, "taints", taints(s), tt.after)
			if n := s.Count("patch", "nodes"); n != tt.patches || kubetest.Get[corev1.Node](s, "", "node1").Labels["a"] != "b" {
				t.Errorf("%d patches, %v", n, kubetest.Get[corev1.Node](s, "", "node1"))
			}
		})
	}
}

// Between the read and the patch of the daemon somebody else changes the taints. What they
// have made stays, and the daemon's taint goes with the next attempt.
func TestTaintsThatOthersChangeMeanwhileStay(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ meanwhile, after []string }{
		"others": {[]string{"new:NoExecute", notReady + "=x:NoSchedule"}, []string{"new:NoExecute"}},
		"it too": {[]string{"a:NoSchedule"}, []string{"a:NoSchedule"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			tainted(s, notReady+":NoSchedule", "a:NoSchedule")
			read := kubetest.Get[corev1.Node](s, "", "node1")
			read.Kind = "Node"
			text, err := json.Marshal(read)
			nodetest.OK(t, err)
			tainted(s, tt.meanwhile...)
			s.Break(kubetest.Fault{Verb: "get", Resource: "nodes", Times: 1, Body: string(text)})
			nodetest.OK(t, open(t, s, Config{Node: "node1"}).RemoveTaint(t.Context(), notReady))
			nodetest.Equal(t, "taints", taints(s), tt.after)
		})
	}
}

// Whatever the API server answers, it is asked again, and the same answer is one line of the
// log.
func TestTaintIsRemovedWhenTheServerAllowsIt(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"no right to get":   {Verb: "get", Status: http.StatusForbidden},
		"no right to patch": {Verb: "patch", Status: http.StatusForbidden},
		"not there":         {Verb: "get", Status: http.StatusNotFound},
		"a conflict":        {Verb: "patch", Status: http.StatusConflict},
		"too many requests": {Verb: "patch", Status: http.StatusTooManyRequests},
		"broken":            {Verb: "get", Status: http.StatusInternalServerError},
		"cut":               {Verb: "patch", Cut: true},
		"a proxy's page":    {Verb: "get", Body: `<html>`},
		"another object":    {Verb: "get", Body: `{"kind":"Status"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			tainted(s, notReady+":NoSchedule")
			fault.Resource, fault.Times = "nodes", 2
			s.Break(fault)
			var log logText
			v := open(t, s, Config{Node: "node1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
			nodetest.OK(t, v.RemoveTaint(t.Context(), notReady))
			if n := strings.Count(log.String(), "not removed yet"); n != 1 || len(taints(s)) > 0 {
				t.Errorf("%d lines, taints %v\n%s", n, taints(s), log.String())
			}
		})
	}
}

// RemoveTaint ends with its context, and says what the server has answered.
func TestRemovingATaintEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	tainted(s, notReady+":NoSchedule")
	s.Break(kubetest.Fault{Verb: "patch", Resource: "nodes", Status: http.StatusForbidden})
	ctx, cancel := context.WithCancel(t.Context())
	v := open(t, s, Config{Node: "node1"})
	ended := make(chan error)
	go func() { ended <- v.RemoveTaint(ctx, notReady) }()
	nodetest.OK(t, s.Wait(t.Context(), func() bool { return s.Count("patch", "nodes") > 0 }))
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "node1") {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "taints", len(taints(s)), 1)
	if err := open(t, s, Config{}).RemoveTaint(t.Context(), notReady); err == nil {
		t.Error("no node, and no error")
	}
}
