package main

import (
	"testing"

	"github.com/metacni/metacni/delegate/plugin"
)

func TestSweeper(t *testing.T) {
	s, err := sweeper(plugin.Plugin{StateDir: t.TempDir(), Networks: networks}, []byte(`{"cniVersion":"1.1.0","name":"n","type":"mine"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
}
