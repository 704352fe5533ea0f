package kube

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/kube/kubetest/contract"
)

// kube-apiserver keeps the contract that package kubetest, the server of delegate/kube's
// tests, keeps.
func TestServerKeepsTheContractOfKubetest(t *testing.T) {
	t.Parallel()
	w := world(t)
	for _, c := range contract.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			err := c.Run(ctx, w.Admin())
			if errors.Is(err, contract.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
