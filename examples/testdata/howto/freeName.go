package main

import (
	"testing"
)

func TestFreeName(t *testing.T) {
	if got := freeName([]string{"eth0", "net1", "net3"}); got != "net2" {
		t.Error(got)
	}
}
