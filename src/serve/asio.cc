// The bodies of Asio's and Beast's functions, compiled once for the whole room.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
