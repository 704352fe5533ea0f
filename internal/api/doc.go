// Package api holds what the module promises to the outside: its exported
// identifiers (testdata, one file a package) and its imports (imports_test.go).
// Both change only on purpose:
//
//	go test ./internal/api -update
package api
