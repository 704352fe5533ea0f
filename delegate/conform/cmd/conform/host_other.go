//go:build !linux

package main

import (
	"context"
	"errors"
)

// inHost fails: only Linux has namespaces.
func (p process) inHost(context.Context) (status int, err error) {
	return -1, errors.New("only Linux has network namespaces")
}
