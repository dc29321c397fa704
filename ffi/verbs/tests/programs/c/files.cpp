// Finds the files of the device by the C++ library.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

int main()
{
	namespace fs = std::filesystem;
	const fs::path folder = "/sys/class/infiniband";
	std::string names, kind;
	for (const auto &entry : fs::directory_iterator(folder))
		names += entry.path().filename().string();
	std::ifstream file(folder / "uwarp0/node_type");
	std::getline(file, kind);
	int numa_node = 7;
	std::ifstream(fs::canonical(folder / "uwarp0/../..") / "numa_node") >> numa_node;
	std::cout << names << ' ' << kind << ' ' << fs::canonical(folder / "uwarp0").string() << ' '
		  << fs::is_character_file("/dev/infiniband/uverbs0") << fs::exists(folder / "none")
		  << fs::is_symlink(folder / "uwarp0") << ' ' << (numa_node == 0 || numa_node == -1) << '\n';
	return 0;
}
