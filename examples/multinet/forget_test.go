package main

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// What an interrupted hot-plug leaves is not called added.
func TestToolIncomplete(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.mustRun(t, "ADD", bridge)
	green, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"green","type":"dies"}`))
	if err != nil {
		t.Fatal(err)
	}
	h.exec.Plugins["dies"] = func(context.Context, delegatetest.Call) ([]byte, error) { runtime.Goexit(); return nil, nil }
	life := &lifecycle.Manager{Dir: h.state(), Invoker: &delegate.Invoker{Exec: h.exec}}
	died := make(chan struct{})
	go func() {
		defer close(died)
		_, err := life.Attach(t.Context(), scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"},
			lifecycle.Transaction{Plan: lifecycle.Plan(delegate.Attachment{Network: green, ContainerID: "c1", IfName: "hot0"})})
		t.Errorf("it did not die: %v", err)
	}()
	<-died
	if out, err := h.tool(t, "list"); err != nil || strings.Count(out, "incomplete") != 2 || strings.Contains(out, "added") {
		t.Errorf("list: %v\n%s", err, out)
	}
	if out, err := h.tool(t, "status", "c1"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("status: %v\n%s", err, out)
	}
}

// A directory that is none is not an empty one.
func TestToolUnreadable(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write(t, "state", "")
	for _, words := range [][]string{{"list"}, {"show", "c1"}, {"damaged"}, {"forget", "c1", "--yes"}} {
		_, err := h.tool(t, words...)
		wantError(t, err, 5, "state")
	}
}
