//go:build !linux

package adopt

import "errors"

func addressesIn(string, string) ([]string, error) { return nil, errors.ErrUnsupported }
