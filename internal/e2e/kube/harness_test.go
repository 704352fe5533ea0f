package kube

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A server that was stopped or paused serves the same client and the same objects
// afterwards.
func TestServerComesBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	core := s.Core(t, s.Admin())
	want, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kept := func() {
		t.Helper()
		got, err := core.Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
		if err != nil || got.UID != want.UID {
			t.Fatalf("%v, %v", got, err)
		}
	}
	s.Stop()
	if _, err := core.Namespaces().Get(t.Context(), "kept", metav1.GetOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("stopped server: %v", err)
	}
	s.Start(t)
	kept()
	s.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := core.Namespaces().Get(ctx, "kept", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("paused server: %v", err)
	}
	s.Resume(t)
	kept()
}
